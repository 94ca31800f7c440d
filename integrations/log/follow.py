"""New records as they are written, to a file or to a store."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kvferry.integrations.log.codec import RecordError, read_outcome, read_record
from kvferry.integrations.log.convert import joined
from kvferry.integrations.log.reader import ReadReport, read_line
from kvferry.integrations.log.record import DecisionRecord
from kvferry.integrations.log.source import SourceError
from kvferry.integrations.redis.connection import STORE_FAILURES, Store, why
from kvferry.integrations.redis.streams import Streams

PENDING = 10_000


def follow_file(
    path: Path, report: ReadReport, *, pause: Callable[[], None] = lambda: time.sleep(0.3)
) -> Iterator[DecisionRecord]:
    """Records appended to `path` from now on, for ever; a rotated or missing file is waited for."""
    handle = path.open("rb") if path.exists() else None
    if handle is not None:
        handle.seek(0, os.SEEK_END)
    rest = b""
    while True:
        if handle is not None:
            while chunk := handle.read(1 << 20):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield from read_line(line, str(path), report)
        if path.exists() and (handle is None or os.fstat(handle.fileno()).st_ino != path.stat().st_ino):
            if handle is not None:
                handle.close()
            handle, rest = path.open("rb"), b""
            continue
        pause()


def follow_store(store: Store, report: ReadReport, runner: asyncio.Runner) -> Iterator[DecisionRecord]:
    """Finished requests as their outcomes reach the stream, for ever. Raises SourceError."""
    streams = Streams(store)
    pending: dict[str, DecisionRecord] = {}
    try:
        after_decision = runner.run(streams.last_id("decision"))
        after_outcome = runner.run(streams.last_id("outcome"))
        while True:
            # a decision is always written before its outcome: ask for outcomes first, then catch up
            outcomes = runner.run(streams.wait("outcome", after=after_outcome, block_s=0.3))
            while decisions := runner.run(streams.wait("decision", after=after_decision, block_s=0.001)):
                for stream_id, entry in decisions:
                    after_decision = stream_id
                    try:
                        pending[entry.id] = read_record(entry.data)
                    except RecordError as error:
                        report.reject(f"decision {stream_id}", str(error))
            while len(pending) > PENDING:
                pending.pop(next(iter(pending)))
            for stream_id, entry in outcomes:
                after_outcome = stream_id
                record = pending.pop(entry.id, None)
                if record is None:
                    continue  # decided before we looked, or a repeat
                try:
                    yield joined(record, read_outcome(entry.data))
                except RecordError as error:
                    report.reject(f"outcome {stream_id}", str(error))
    except STORE_FAILURES as error:
        raise SourceError(f"store {store.label}: {why(error)}") from None
