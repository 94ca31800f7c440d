"""Records from files, directories and streams, one at a time; bad lines are counted, never fatal."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from kvferry.integrations.log.cluster_table import table_id
from kvferry.integrations.log.codec import RecordError, read_outcome, read_record
from kvferry.integrations.log.convert import joined
from kvferry.integrations.log.record import DecisionRecord, Outcome
from kvferry.integrations.log.source import SourceError, files_of, is_store
from kvferry.integrations.redis.connection import STORE_FAILURES, Store, open_store, why
from kvferry.integrations.redis.streams import Streams
from kvferry.integrations.redis.url import StoreError


@dataclass(slots=True)
class ReadReport:
    """Filled in while reading. `clusters`: id -> line of every cluster table so far; one comes before the
    records that need it."""

    read: int = 0
    bad: int = 0
    first_bad: str = ""
    clusters: dict[str, bytes] = field(default_factory=dict)

    def reject(self, where: str, reason: str) -> None:
        self.bad += 1
        self.first_bad = self.first_bad or f"{where}: {reason}"


def read_log(
    source: str | None = None, report: ReadReport | None = None, *, namespace: str = "kvferry"
) -> Iterator[DecisionRecord]:
    """All records of a source (see `files_of`; or a store's URL), oldest first. Raises SourceError."""
    report = report if report is not None else ReadReport()
    if source is not None and is_store(source):
        yield from _read_url(source, report, namespace)
        return
    for path in files_of(source):
        yield from read_file(path, report)


def read_file(path: Path, report: ReadReport) -> Iterator[DecisionRecord]:
    """The records of one file. Raises SourceError when it cannot be opened."""
    if path.name.endswith(".parquet"):
        from kvferry.integrations.log.parquet import read_parquet

        yield from read_parquet(path, report)
        return
    try:
        raw = path.open("rb")
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from None
    with raw:
        lines = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.name.endswith(".gz") else raw
        number = 0
        try:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield from read_line(line, f"{path}:{number}", report)
        except (EOFError, OSError, zlib.error) as error:
            report.reject(f"{path}:{number + 1}", f"the file ends here: {error}")


def read_line(line: bytes, where: str, report: ReadReport) -> Iterator[DecisionRecord]:
    """The record of one line, or none and a count; a cluster table is put among the others."""
    try:
        record = read_record(line)
    except RecordError as error:
        if (table := table_id(line)) is not None:
            report.clusters[table] = line.strip()
            return
        report.reject(where, str(error))
        return
    report.read += 1
    yield record


async def read_store(store: Store, report: ReadReport) -> AsyncIterator[DecisionRecord]:
    """The decision stream, each record with its outcome as far as there is one. Raises redis-py's errors."""
    streams = Streams(store)
    outcomes: dict[str, Outcome] = {}
    async for _, entry in streams.read("cluster"):
        report.clusters[entry.id] = entry.data
    async for stream_id, entry in streams.read("outcome"):
        try:
            outcomes[entry.id] = read_outcome(entry.data)
        except RecordError as error:
            report.reject(f"outcome {stream_id}", str(error))
    seen: set[str] = set()
    async for stream_id, entry in streams.read("decision"):
        for record in read_line(entry.data, f"decision {stream_id}", report):
            key = f"{record.mode}:{record.policy}:{record.id}"
            if key in seen:  # streams are delivered at least once
                report.read -= 1
                continue
            seen.add(key)
            outcome = outcomes.get(record.id) if record.mode != "shadow" else None
            yield joined(record, outcome) if outcome is not None else record


def _read_url(url: str, report: ReadReport, namespace: str) -> Iterator[DecisionRecord]:
    with asyncio.Runner() as runner:
        try:
            store = runner.run(open_store(url, namespace=namespace, timeout_s=5.0))
        except StoreError as error:
            raise SourceError(str(error), usage=True) from None
        try:
            runner.run(store.check())
            records = read_store(store, report)
            while (record := runner.run(_next(records))) is not None:
                yield record
        except StoreError as error:
            raise SourceError(str(error)) from None
        except STORE_FAILURES as error:
            raise SourceError(f"store {store.label}: {why(error)}") from None
        finally:
            runner.run(store.close())


async def _next(records: AsyncIterator[DecisionRecord]) -> DecisionRecord | None:
    return await anext(records, None)
