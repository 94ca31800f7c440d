"""Tasks done: those that are on disk are taken, the others computed, with the time that is left on stderr."""

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from policies_parts.task import Task, run_task
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvferry.integrations.simulate.engine import Failure, unique
from kvferry.integrations.simulate.processes import run_processes
from kvferry.integrations.simulate.results import opened
from kvferry.models.simulator.cell import Result

LINE_EVERY_S = 60.0


def do(tasks: Sequence[Task], jobs: int, out: Path, what: str) -> dict[str, Result]:
    """Results by key, each kept in OUT/cells.jsonl as it comes. RuntimeError names the first task that
    failed, after the others are done."""
    todo = unique(tasks)
    with opened(out) as kept, _Bar(what, len(todo)) as bar:
        found = {task.key: kept.done[task.key] for task in todo if task.key in kept.done}
        bar.advance(len(found))
        left = [task for task in todo if task.key not in found]
        failed = ""
        if left:
            with closing(run_processes(left, min(jobs, len(left)), run_task)) as outcomes:
                for task, result in outcomes:
                    place = ", ".join(str(value) for _, value in task.labels if value is not None)
                    bar.advance(1, place)
                    if isinstance(result, Failure):
                        failed = failed or f"{place}: {result.why}"
                        continue
                    kept.add(task, result)
                    found[task.key] = result
    if failed:
        raise RuntimeError(failed)
    return found


class _Bar:
    """A bar on a terminal, else a line a minute."""

    def __init__(self, what: str, total: int) -> None:
        console = Console(stderr=True)
        counted = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        columns = (*counted, TextColumn("{task.description}"))
        self._live = console.is_terminal
        self._bar = Progress(*columns, console=console, transient=True, disable=not self._live)
        self._task = self._bar.add_task("", total=total)
        self._what, self._total, self._done = what, total, 0
        self._began_s = self._told_s = time.monotonic()

    def __enter__(self) -> "_Bar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, count: int, told: str = "") -> None:
        self._done += count
        self._bar.update(self._task, completed=self._done, description=told[:60])
        now_s = time.monotonic()
        if not self._live and (now_s - self._told_s > LINE_EVERY_S or self._done == self._total):
            self._told_s = now_s
            line = f"{self._what} {self._done}/{self._total}, {now_s - self._began_s:.0f} s"
            print(line, file=sys.stderr, flush=True)
