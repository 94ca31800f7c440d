"""Cells in processes of this machine."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from kvferry.integrations.simulate.engine import Failure, L, Outcome, failure
from kvferry.models.simulator.cell import Result

DIED = "the process that computed it died: killed, or out of memory"


def run_processes(
    cells: Sequence[L], jobs: int, work: Callable[[L], Result]
) -> Generator[tuple[L, Outcome], None, None]:
    """Up to `jobs` cells at once. When a process dies, the cells that were being computed are tried once
    more, each alone in a process of its own: the one that kills its process is named, the others finish."""
    waiting, suspects = deque(cells), deque[L]()
    while waiting:
        yield from _pool(waiting, suspects, jobs, work)
        while suspects:
            cell, again = suspects.popleft(), deque[L]()
            yield from _pool(deque((cell,)), again, 1, work)
            if again:
                yield cell, Failure(DIED)


def _pool(
    waiting: deque[L], suspects: deque[L], jobs: int, work: Callable[[L], Result]
) -> Generator[tuple[L, Outcome], None, None]:
    """Until all cells that wait are done, or the pool breaks: then `suspects` holds those it was at."""
    # Spawned: a fork would copy the threads and locks of the progress display.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_child)
    running: dict[Future[Result], L] = {}
    try:
        while (waiting or running) and not suspects:
            while waiting and len(running) < jobs:
                running[pool.submit(work, waiting[0])] = waiting[0]
                waiting.popleft()
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                cell = running.pop(future)
                outcome = _outcome(cell, future)
                if outcome is None:
                    suspects.append(cell)
                else:
                    yield cell, outcome
    except BrokenProcessPool:  # submitting to it: the cell still waits
        pass
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        suspects.extend(running.values())
        pool.shutdown(wait=True, cancel_futures=True)


def _outcome(cell: L, future: Future[Result]) -> Outcome | None:
    """None when its process died."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None
    except Exception as error:  # noqa: BLE001 - raised by the cell, told with it
        return failure(cell, error)


def _child() -> None:
    """Ctrl-C reaches the whole process group; only the parent answers it. When the parent is killed, its
    children would wait for work for ever: each holds the other end of the pipe that would tell them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
