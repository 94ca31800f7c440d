"""What `train` and `evaluate` share: their sources, and reading them with a bar and clear errors."""

from typing import Annotated

import typer

from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.cli.log_failures import failures
from kvferry.integrations.learning.progress import progress
from kvferry.integrations.learning.sources import read_rows
from kvferry.integrations.learning.tally import Tally
from kvferry.integrations.log.source import READABLE
from kvferry.models.training.rows import Rows

Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="SRC",
        help=f"A file or folder of {READABLE}, or a store's URL (redis://...); may be repeated. "
        "Default: this machine's log.",
    ),
]
Namespace = Annotated[str, typer.Option(help="Key prefix in the store.", metavar="NAME")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def read(sources: list[str] | None, namespace: str, *, predictions: bool) -> tuple[Rows, Tally]:
    """Rows of all sources, and what was left out. CommandError or UsageError when one cannot be read, or
    when nothing in them is a record."""
    tally = Tally()
    with failures(), progress("reading") as report:
        rows = read_rows(sources or (), tally, predictions=predictions, progress=report, namespace=namespace)
    if not tally.read:
        raise CommandError(
            f"no readable record: {tally.bad} bad lines, the first at {tally.first_bad}"
            if tally.bad
            else "the log is empty: no request in it yet"
        )
    return rows, tally
