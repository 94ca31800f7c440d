"""From the scheduler to the store without the scheduler ever waiting: one thread, one bounded queue."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redis.exceptions import RedisError

from kvferry.integrations.redis.keys import Keys
from kvferry.integrations.redis.url import redact
from kvferry.integrations.sglang.plugin.wire import LoadRecord, Record, WorkerRecord, encode

log = logging.getLogger("kvferry.plugin")

STORE_FAILURES = (RedisError, OSError, TimeoutError)
BATCH = 500  # records in one pipeline
PAUSE_S = 0.2  # between looks at the queue: the sink works in batches, not per record
MAX_BACKOFF_S = 2.0
TOLD_TTL_S = 30
TELL_EVERY_S = 10.0

Build = Callable[[], Record | None]


class Sink(threading.Thread):
    """Takes what is to become records with `put`, which never blocks, and sends them in pipelines.

    Records are built and encoded here, off the scheduler's thread. While the store is away or slow they
    wait; beyond `capacity` the oldest are dropped, and counted. A batch whose answer was lost is sent
    again: readers may see a record twice. `tell` builds the WorkerRecord: sent first, every 10 s, and
    when the store is back; it also stands under a key of its own. `load` builds a LoadRecord.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        keys: Keys,
        label: str,
        *,
        capacity: int,
        stream_records: int,
        load_interval_s: float,
        tell: Callable[[], WorkerRecord],
        load: Callable[[], LoadRecord | None],
    ) -> None:
        super().__init__(daemon=True, name="kvferry-telemetry")
        self.label = label
        self.sent = 0
        self.dropped = 0
        self.cpu_s = 0.0
        self.up = True
        self._connect = connect
        self._client: Any = None
        self._keys = keys
        self._capacity = max(1, capacity)
        self._stream_records = stream_records
        self._load_interval_s = load_interval_s
        self._tell = tell
        self._load = load
        self._queue: deque[Build] = deque()
        self._lock = threading.Lock()  # held for a moment only, never over the network
        self._ended = threading.Event()
        self._away_since = 0.0
        self._dropped_before = 0
        self._next_load = 0.0
        self._next_tell = 0.0

    @property
    def queued(self) -> int:
        """Records that wait."""
        return len(self._queue)

    def put(self, build: Build) -> None:
        """Hand a record over, to be built later. The oldest one goes where there is no room."""
        with self._lock:
            if len(self._queue) >= self._capacity:
                self._queue.popleft()
                self.dropped += 1
            self._queue.append(build)

    def close(self) -> None:
        """End the thread after what it is doing; what waits is lost."""
        self._ended.set()

    def run(self) -> None:
        """Until closed. A failure that is none of the store's is logged, and the records of that round are
        lost: a thread that died would be worse."""
        backoff_s = PAUSE_S
        while not self._ended.wait(PAUSE_S if self.up else backoff_s):
            try:
                self._round()
            except STORE_FAILURES as error:
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S) if not self.up else PAUSE_S
                self._lost(error)
            except Exception:
                log.exception("telemetry: a round of records is lost")
            self.cpu_s = time.thread_time()
        self._disconnect()

    def _round(self) -> None:
        """Send what waits, until nothing does."""
        now = time.monotonic()
        periodic: list[Build] = []
        tells = now >= self._next_tell or not self.up
        if tells:
            periodic.append(self._tell)
        if now >= self._next_load:
            periodic.append(self._load)
            self._next_load = now + self._load_interval_s
        while True:
            builds = self._take()
            if not builds and not periodic:
                return
            try:
                self._send(_encoded([*periodic, *builds]))
            except STORE_FAILURES:
                self._put_back(builds)
                raise
            if tells:
                self._next_tell = now + TELL_EVERY_S
            periodic = []
            if len(builds) < BATCH:
                return

    def _take(self) -> list[Build]:
        with self._lock:
            return [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]

    def _put_back(self, builds: Sequence[Build]) -> None:
        with self._lock:
            room = max(0, self._capacity - len(self._queue))
            kept = builds[len(builds) - min(room, len(builds)) :]
            self.dropped += len(builds) - len(kept)
            self._queue.extendleft(reversed(kept))

    def _send(self, records: Sequence[tuple[Record, bytes]]) -> None:
        if not records:
            return
        if self._client is None:
            self._client = self._connect()
        pipeline = self._client.pipeline(transaction=False)
        for record, data in records:
            pipeline.xadd(self._keys.telemetry, {"data": data}, maxlen=self._stream_records, approximate=True)
            if isinstance(record, WorkerRecord):
                pipeline.set(self._keys.told(record.worker), data, ex=TOLD_TTL_S)
        pipeline.execute()
        self.sent += len(records)
        self._back()

    def _lost(self, error: Exception) -> None:
        if self.up:
            self.up = False
            self._away_since = time.monotonic()
            self._dropped_before = self.dropped
            why = redact(" ".join(str(error).split())) or type(error).__name__
            log.warning(
                "telemetry: store %s lost (%s): serving goes on, up to %d records wait",
                self.label,
                why,
                self._capacity,
            )
        self._disconnect()

    def _back(self) -> None:
        if self.up:
            return
        self.up = True
        log.warning(
            "telemetry: store %s is back after %.1f s, %d records dropped, %d to send",
            self.label,
            time.monotonic() - self._away_since,
            self.dropped - self._dropped_before,
            self.queued,
        )

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            client.close()
        except STORE_FAILURES as error:
            log.debug("telemetry: closing the store: %s", type(error).__name__)


def _encoded(builds: Iterable[Build]) -> list[tuple[Record, bytes]]:
    """The records; one that cannot be built is logged and left out, the others are not its fault."""
    records = []
    for build in builds:
        try:
            record = build()
            if record is not None:
                records.append((record, encode(record)))
        except Exception:
            log.exception("telemetry: a record could not be built")
    return records
