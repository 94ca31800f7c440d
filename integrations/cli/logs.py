"""`kvferry logs`: what was decided, why, and what came of it."""

import asyncio
import json
import shutil
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.cli.log_failures import failures
from kvferry.integrations.log import rows
from kvferry.integrations.log.explain import show
from kvferry.integrations.log.export import export as write_export
from kvferry.integrations.log.follow import follow_file, follow_store
from kvferry.integrations.log.reader import ReadReport, read_log
from kvferry.integrations.log.record import DecisionRecord
from kvferry.integrations.log.search import find
from kvferry.integrations.log.source import READABLE, SUFFIXES, SourceError, is_store
from kvferry.integrations.log.stats import stats as statistics
from kvferry.integrations.log.table import stats_tables
from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.state import log_path

HELP = """Show what was decided, why, and what came of it.

Example: kvferry logs tail
"""
TAIL = """Show the newest requests, and each new one as it finishes (--once: only those that are there).

Predicted and actual are times to first token; the error is + where the prediction was too long.

Example: kvferry logs tail -n 50 --once
"""
EXPLAIN = """Explain one decision: every candidate, every term, why the others lost, what then happened.

ID may be shortened as long as only one request begins with it.

Example: kvferry logs explain 7f3a
"""
STATS = """Sum up a log: how often it split and why, and how good the predictions were.

Example: kvferry logs stats --from redis://127.0.0.1:6379 --json
"""
EXPORT = """Copy a log into one file; a .parquet file opens in pandas, Polars or DuckDB.

Example: kvferry logs export --to decisions.parquet
"""

Source = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="SRC",
        help=f"A file or folder of {READABLE}, or a store's URL (redis://...). Default: this machine's log.",
    ),
]
Namespace = Annotated[str, typer.Option(help="Key prefix in the store.", metavar="NAME")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def register(app: typer.Typer) -> None:
    logs = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    logs.command("tail", help=TAIL)(tail)
    logs.command("explain", help=EXPLAIN)(explain)
    logs.command("stats", help=STATS)(stats)
    logs.command("export", help=EXPORT)(export)
    app.add_typer(logs, name="logs")


def tail(
    source: Source = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many of the newest requests.")] = 20,
    follow: Annotated[
        bool | None,
        typer.Option("--follow/--once", help="Go on with new ones. Default: follow in a terminal."),
    ] = None,
    namespace: Namespace = "kvferry",
    as_json: AsJson = False,
) -> None:
    if as_json and follow:
        raise UsageError("--json prints one object: use it with --once")
    going_on = bool(follow if follow is not None else sys.stdout.isatty()) and not as_json
    with failures():
        report = ReadReport()
        waiting = going_on and source is None and not log_path().exists()
        newest = [] if waiting else list(deque(_reading(source, report, namespace), maxlen=n))
        if not going_on:
            _complain(report, source)
        if as_json:
            _print_json({"records": [msgspec.to_builtins(record) for record in newest]})
            return
        width = shutil.get_terminal_size((80, 24)).columns
        print(rows.header(width))
        for record in newest:
            print(rows.row(record, width))
        if going_on:
            for record in _following(source, ReadReport(), namespace):
                print(rows.row(record, width), flush=True)


def explain(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="A request's id, or its beginning.")],
    source: Source = None,
    namespace: Namespace = "kvferry",
    as_json: AsJson = False,
) -> None:
    with failures():
        report = ReadReport()
        try:
            record = find(_reading(source, report, namespace), request_id)
        except SourceError:
            if report.bad:
                _complain(report, source)
            raise
    if as_json:
        _print_json(msgspec.to_builtins(record))
    else:
        show(record, Console(highlight=False))


def stats(source: Source = None, namespace: Namespace = "kvferry", as_json: AsJson = False) -> None:
    with failures():
        report = ReadReport()
        figures = statistics(_reading(source, report, namespace))
        _complain(report, source)
    if as_json:
        _print_json(figures)
    else:
        Console(highlight=False).print(*stats_tables(figures), sep="\n")


def export(
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help=f"The file to write: {READABLE}.")],
    source: Source = None,
    namespace: Namespace = "kvferry",
    as_json: AsJson = False,
) -> None:
    if not to.name.endswith(SUFFIXES):
        raise UsageError(f"cannot write {to}: expected {READABLE}")
    with failures():
        report = ReadReport()
        count = write_export(_reading(source, report, namespace), to, report.clusters)
        _complain(report, source)
    if as_json:
        _print_json({"records": count, "bad_lines": report.bad, "to": str(to)})
    else:
        print(f"{count} records -> {to}")


def _reading(source: str | None, report: ReadReport, namespace: str) -> Iterator[DecisionRecord]:
    """The records, with a count on a terminal's stderr while it takes long."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from read_log(source, report, namespace=namespace)
        return
    with console.status("reading the log") as status:
        for record in read_log(source, report, namespace=namespace):
            if report.read % 5000 == 0:
                status.update(f"reading the log: {report.read} records")
            yield record


def _following(source: str | None, report: ReadReport, namespace: str) -> Iterator[DecisionRecord]:
    if source is None or not is_store(source):
        path = Path(source).expanduser() if source is not None else log_path()
        if path.is_dir() or path.suffix != ".jsonl":
            raise UsageError(f"cannot follow {path}: only a .jsonl file or a store grows; use --once")
        yield from follow_file(path, report)
        return
    with asyncio.Runner() as runner:
        store = runner.run(open_store(source, namespace=namespace, timeout_s=5.0))
        try:
            yield from follow_store(store, report, runner)
        finally:
            runner.run(store.close())


def _complain(report: ReadReport, source: str | None) -> None:
    """One line on stderr about what could not be read; an error when nothing else was there."""
    if not report.read and report.bad:
        raise CommandError(f"no readable record: {report.bad} bad lines, the first at {report.first_bad}")
    if not report.read:
        raise CommandError(f"the log is empty: no request in {_name(source)} yet")
    if report.bad:
        print(f"kvferry: skipped {report.bad} bad lines, the first at {report.first_bad}", file=sys.stderr)


def _name(source: str | None) -> str:
    from kvferry.integrations.redis.url import redact

    return redact(source) if source is not None else str(log_path())


def _print_json(value: Any) -> None:
    print(json.dumps(value))
