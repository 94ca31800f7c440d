"""What happens next: calls in the order of their time."""

import math
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any


class Event:
    """A call that is due at `time_s`; `cancel` takes it back."""

    __slots__ = ("args", "call", "time_s")

    def __init__(self, time_s: float, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.time_s = time_s
        self.call: Callable[..., object] | None = call
        self.args = args

    def cancel(self) -> None:
        self.call = None


class Events:
    """A queue of calls; equal times keep the order in which they were asked for. Whether its time is
    simulated or follows a clock is up to whoever calls `run`."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self.done = 0
        self._heap: list[tuple[float, int, Event]] = []
        self._order = count()
        self._stopped = False

    def at(self, time_s: float, call: Callable[..., object], *args: Any) -> Event:
        """Ask for `call(*args)` at `time_s`. ValueError when that has passed."""
        if not time_s >= self.now_s:
            raise ValueError(f"{time_s} s has passed: it is {self.now_s} s")
        event = Event(time_s, call, args)
        heappush(self._heap, (time_s, next(self._order), event))
        return event

    @property
    def next_s(self) -> float | None:
        """When the next call is due; None when there is none."""
        heap = self._heap
        while heap and heap[0][2].call is None:
            heappop(heap)
        return heap[0][0] if heap else None

    def run(self, until_s: float = math.inf) -> None:
        """Make the calls that are due by `until_s`, in order; time then stands at the last of them, or at
        `until_s` where that is finite."""
        heap = self._heap
        self._stopped = False
        while heap and heap[0][0] <= until_s and not self._stopped:
            time_s, _, event = heappop(heap)
            if event.call is not None:
                self.now_s = time_s
                self.done += 1
                event.call(*event.args)
        if until_s != math.inf and not self._stopped:
            self.now_s = max(self.now_s, until_s)

    def stop(self) -> None:
        """Leave `run` after the call that is being made."""
        self._stopped = True
