"""What telemetry itself costs: CPU seconds in its hooks."""

import functools
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Meter:
    """CPU seconds by thread; each thread adds only to its own, so no lock is needed."""

    def __init__(self) -> None:
        self._spent: dict[int, float] = {}

    def add(self, cpu_s: float) -> None:
        thread = threading.get_ident()
        self._spent[thread] = self._spent.get(thread, 0.0) + cpu_s

    def of(self, thread: int | None) -> float:
        """CPU seconds of one thread's hooks."""
        return self._spent.get(thread, 0.0) if thread is not None else 0.0

    def total(self) -> float:
        """CPU seconds of all threads' hooks."""
        return sum(list(self._spent.values()))

    def timed(self, function: Callable[P, R]) -> Callable[P, R]:
        """`function`, its CPU time added up."""

        @functools.wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            began_s = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.add(time.thread_time() - began_s)

        return measured
