"""Telemetry of simulated workers, as kvferry's plugin sends it from real ones."""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence

from kvferry.integrations.redis.background import Background
from kvferry.integrations.redis.connection import STORE_FAILURES, Store, why
from kvferry.integrations.sglang.plugin.wire import LoadRecord, Record, WorkerRecord, encode
from kvferry.integrations.sglang.simulated.flight import Flight
from kvferry.integrations.sglang.simulated.identity import DTYPE, VERSION, Identity
from kvferry.integrations.sglang.simulated.pump import Pump
from kvferry.integrations.sglang.simulated.record import record_of
from kvferry.policy.worker import Role

log = logging.getLogger("kvferry.simulated")

PAUSE_S = 0.2
RETRY_S = 1.0
LOAD_EVERY_S = 1.0
WORKER_EVERY_S = 10.0
MOST_WAITING = 10_000
BATCH = 500
STREAM_RECORDS = 100_000


class Telling(Background):
    """Requests that ended, a sign of life every second, and what each worker is every ten. While the store
    is away the newest MOST_WAITING requests wait. Closes the store."""

    def __init__(self, store: Store, pump: Pump) -> None:
        super().__init__("simulated-telemetry")
        self._store, self._pump = store, pump
        self._workers: list[Identity] = []
        self._waiting: deque[Record] = deque(maxlen=MOST_WAITING)
        self._load_due_s = self._worker_due_s = 0.0
        self._up = True

    def add(self, identity: Identity) -> None:
        """One more worker that tells."""
        self._workers.append(identity)

    def ended(self, identity: Identity, flight: Flight) -> None:
        """A request has ended there."""
        on_decode = identity.spec.role is Role.DECODE
        self._waiting.append(record_of(flight, identity.instance, self._pump, on_decode=on_decode))

    async def close(self) -> None:
        await self._end(timeout_s=1.0)
        await self._store.close()

    async def _step(self) -> float | None:
        now_s = time.monotonic()
        requests = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        batch = [*self._periodic(now_s), *requests]
        if not batch:
            return PAUSE_S
        try:
            await self._send(batch)
        except STORE_FAILURES as error:
            if self._up:
                log.warning(
                    "store %s does not answer (%s): until it does, no telemetry; requests beyond the newest "
                    "%d are lost to it",
                    self._store.label,
                    why(error),
                    MOST_WAITING,
                )
            self._up = False
            room = MOST_WAITING - len(self._waiting)
            self._waiting.extendleft(reversed(requests[max(0, len(requests) - room) :]))
            return RETRY_S
        if not self._up:
            log.warning("store %s answers again: telemetry goes on", self._store.label)
        self._up = True
        if now_s >= self._worker_due_s:
            self._worker_due_s = now_s + WORKER_EVERY_S
        if now_s >= self._load_due_s:
            self._load_due_s = now_s + LOAD_EVERY_S
        return PAUSE_S if len(requests) < BATCH else 0.0

    async def _send(self, batch: Sequence[Record]) -> None:
        pipeline = self._store.client.pipeline(transaction=False)
        for record in batch:
            fields = {"data": encode(record)}
            pipeline.xadd(self._store.keys.telemetry, fields, maxlen=STREAM_RECORDS, approximate=True)
        await pipeline.execute()

    def _periodic(self, now_s: float) -> Iterator[Record]:
        for identity in self._workers:
            if now_s >= self._worker_due_s:
                yield _worker(identity)
            if now_s >= self._load_due_s:
                yield LoadRecord(identity.instance, time_s=time.time())


def _worker(identity: Identity) -> WorkerRecord:
    spec, port = identity.spec, identity.bootstrap_port
    return WorkerRecord(
        worker=identity.instance,
        time_s=time.time(),
        url=f"http://{identity.options.host}:{identity.port}",
        role=spec.role.value,
        model=spec.model,
        sglang=VERSION,
        dtype=DTYPE,
        tp=spec.tp,
        max_total_tokens=spec.max_total_tokens,
        transports={} if spec.role is Role.COLOCATED else {identity.transport: port},
        local_prefill=spec.local_prefill,
        host=identity.options.host,
        port=identity.port,
    )
