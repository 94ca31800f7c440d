"""How far reading or training is, on stderr: a bar on a terminal, else a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

EVERY_S = 10.0
# Told of how much is done, and of how much there is.
Report = Callable[[float, float], None]


@contextmanager
def progress(word: str, every_s: float = EVERY_S) -> Iterator[Report]:
    """What is no terminal gets a line every `every_s`, so nothing at all from a short run."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    hidden = not console.is_terminal  # it would leave an empty line in a log
    columns = (TextColumn(word), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    begun_s = told_s = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=None)

        def report(done: float, total: float) -> None:
            nonlocal told_s
            bar.update(task, completed=done, total=total)
            now_s = time.monotonic()
            if hidden and now_s - told_s >= every_s:
                told_s = now_s
                share = f"{done / total:.0%}" if total else "?"
                console.print(f"{word}: {share}, {now_s - begun_s:.0f} s", markup=False)

        yield report
