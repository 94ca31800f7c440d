"""What a probe prints: what it found on stdout, how it goes on stderr."""

import os
import sys

import typer
from rich.console import Console
from rich.table import Table

LEAST_WIDTH = 80


class Said:
    """stdout, which may go away (`| head`). With `further`, the probe has something else to write: it goes
    on without; else it ends there, and has not failed."""

    def __init__(self, further: bool) -> None:
        self._further, self._gone = further, False

    def line(self, text: str) -> None:
        """At once, and above a progress bar where both are on a terminal."""
        self._write(f"{text}\n")

    @property
    def width(self) -> int:
        """Columns of a table: on a narrower terminal its rows wrap, but no figure is cut."""
        return max(LEAST_WIDTH, Console().width)

    def table(self, table: Table) -> None:
        console = Console(highlight=False, width=self.width)
        with console.capture() as captured:
            console.print(table)
        self._write(captured.get())

    def _write(self, text: str) -> None:
        if self._gone:
            return
        out = sys.stdout
        if not out.isatty():
            # A bar on a terminal takes what is printed meanwhile for its own.
            out = getattr(out, "rich_proxied_file", out)
        try:
            out.write(text)
            out.flush()
        except BrokenPipeError:
            self._gone = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
            if not self._further:
                raise typer.Exit(0) from None


def say(what: str) -> None:
    """On stderr."""
    print(f"kvferry: {what}", file=sys.stderr, flush=True)


def about(seconds: float) -> str:
    """40 s, 12 min, 3.5 h."""
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"
