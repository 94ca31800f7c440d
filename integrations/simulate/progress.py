"""How far the cells are, on stderr: a bar on a terminal, else a line now and then."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvferry.models.simulator.spec import Watch

EVERY_S = 10.0


@contextmanager
def progress(total: int, every_s: float = EVERY_S) -> Iterator[tuple[Callable[[int, str], None], Watch]]:
    """Two functions: one takes how many cells ended and a word on the last, the other how far the cell that
    runs is. What is no terminal gets a line every `every_s`, so nothing at all from a short run."""
    base = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (*base, TextColumn("{task.description}"))
    hidden = not console.is_terminal  # it would leave an empty line in a log
    over, begun_s = threading.Event(), time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task, whole, part = bar.add_task("", total=total), 0, 0.0

        def advance(cells: int, told: str) -> None:
            nonlocal whole, part
            whole, part = whole + cells, 0.0
            bar.update(task, completed=whole, description=told[:40])

        def watch(ended: int, of: int) -> None:
            nonlocal part
            part = ended / max(1, of)
            bar.update(task, completed=whole + part)

        def lines() -> None:
            while not over.wait(every_s):
                passed_s = time.monotonic() - begun_s
                console.print(
                    f"simulating: {whole + part:.1f} of {total} done, {passed_s:.0f} s", markup=False
                )

        teller = threading.Thread(target=lines, name="progress", daemon=True)
        if hidden:
            teller.start()
        try:
            yield advance, watch
        finally:
            over.set()
            if hidden:
                teller.join()
