"""Writes the request log beside the router: the caller hands a record over and goes on."""

import asyncio
import logging
from collections import OrderedDict, deque

from kvferry.integrations.log.codec import write_record
from kvferry.integrations.log.jsonl import JsonlWriter
from kvferry.integrations.log.record import DecisionRecord

_log = logging.getLogger("kvferry.log")

RETRY_S = 1.0
TABLES = 256


class BackgroundLog:
    """`put` never blocks and never raises; records wait in memory while the disk fails or lags, and beyond
    `queue_max` are lost, counted in `dropped`."""

    def __init__(self, writer: JsonlWriter, *, queue_max: int = 50_000) -> None:
        self.written = 0
        self.dropped = 0
        self._writer = writer
        self._queue: deque[tuple[bytes, str]] = deque()
        self._tables: OrderedDict[str, bytes] = OrderedDict()
        self._queue_max = queue_max
        self._wake = asyncio.Event()
        self._failing = False
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def queued(self) -> int:
        return len(self._queue)

    def start(self) -> None:
        """Begin; needs the running event loop."""
        self._task = asyncio.create_task(self._run(), name="kvferry-log")

    def table(self, name: str, line: bytes) -> None:
        """A cluster table that records from now on may refer to."""
        self._tables[name] = line
        self._tables.move_to_end(name)
        if len(self._tables) > TABLES:
            self._tables.popitem(last=False)

    def put(self, record: DecisionRecord) -> None:
        if len(self._queue) >= self._queue_max:
            self._drop(1, "the disk does not keep up")
            return
        try:
            table = record.picture.cluster if record.picture is not None else ""
            self._queue.append((write_record(record), table))
        except (TypeError, ValueError, OverflowError) as error:
            self.dropped += 1
            _log.error("cannot write the record of %s: %s", record.id, error)
        self._wake.set()

    async def close(self) -> None:
        """Write what is left."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task
        self._writer.close()

    async def _run(self) -> None:
        while self._queue or not self._closing:
            if not self._queue:
                await self._wake.wait()
                self._wake.clear()
            waiting = list(self._queue)
            self._queue.clear()
            lines = [line for line, _ in waiting]
            heads = {name: self._tables[name] for _, name in waiting if name in self._tables}
            try:
                await asyncio.to_thread(self._writer.write_lines, lines, heads)
            except OSError as error:
                if self._closing:
                    self._drop(len(lines), str(error))
                    continue
                self._queue.extendleft(reversed(waiting))
                self._complain(str(error))
                await asyncio.sleep(RETRY_S)
            else:
                self.written += len(lines)
                if self._failing and lines:
                    self._failing = False
                    _log.warning("the request log %s is written again", self._writer.path)

    def _drop(self, n: int, why: str) -> None:
        if not self.dropped:
            _log.error("the request log %s loses records: %s", self._writer.path, why)
        self.dropped += n

    def _complain(self, why: str) -> None:
        if not self._failing:
            self._failing = True
            _log.error("cannot write the request log %s: %s; records wait in memory", self._writer.path, why)
