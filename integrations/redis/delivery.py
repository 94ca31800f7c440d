"""Carries stream entries to the store, in order; over the disk when the store is gone or slow."""

import asyncio
import logging
import time
from collections import deque
from itertools import islice

from kvferry.integrations.redis.background import Background
from kvferry.integrations.redis.connection import STORE_FAILURES, Store
from kvferry.integrations.redis.health import Health
from kvferry.integrations.redis.spool import Spool
from kvferry.integrations.redis.streams import Entry, Streams
from kvferry.integrations.redis.url import StoreError

_log = logging.getLogger("kvferry.redis")


class Delivery(Background):
    """`put` never blocks and never raises. At least once: an entry may come twice, readers go by its id.

    `delivered` and `dropped` count since the start; `queued` wait in memory, `spooled` on disk.
    """

    def __init__(
        self,
        store: Store,
        health: Health,
        spool: Spool | None,
        *,
        batch: int = 500,
        spill_at: int = 5_000,
        queue_max: int = 100_000,
        retry_s: float = 0.25,
        retry_max_s: float = 5.0,
    ) -> None:
        super().__init__("delivery")
        self.delivered = 0
        self.dropped = 0
        self._store, self._health, self._spool = store, health, spool
        self._streams = Streams(store)
        self._queue: deque[Entry] = deque()
        self._batch, self._spill_at, self._queue_max = batch, spill_at, queue_max
        self._retry_min_s = self._retry_s = retry_s
        self._retry_max_s = retry_max_s
        self._retry_at = 0.0
        self._failing = False
        self._complained = False

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def spooled(self) -> int:
        return self._spool.pending if self._spool is not None else 0

    def put(self, entry: Entry) -> None:
        """Queue one entry; with memory and disk full it is dropped and counted."""
        if len(self._queue) >= self._queue_max:
            self._drop(1, "memory")
            return
        self._queue.append(entry)
        if not self._wake.is_set():
            self._poke()

    async def close(self, drain_s: float) -> None:
        """Deliver what is left within `drain_s`, else leave it on disk for the next start."""
        deadline = time.monotonic() + drain_s
        while (self.queued or self.spooled) and not self._failing and time.monotonic() < deadline:
            self._poke()
            await asyncio.sleep(0.005)
        await self._end(timeout_s=max(0.1, deadline - time.monotonic()))
        while self._queue and self._spool is not None and await self._to_spool():
            pass
        self._drop(len(self._queue), "memory")
        if self._spool is not None:
            self._spool.close()

    async def _step(self) -> float | None:
        # what is on disk is always older than what is queued, and is sent first: that keeps the order
        if self._failing or len(self._queue) > self._spill_at:
            await asyncio.sleep(0.01)  # one write for many entries
            await self._to_spool()
        wait_s = self._retry_at - time.monotonic()
        if self._failing and wait_s > 0:
            return min(wait_s, 0.05) if self._queue else wait_s
        if not self._failing and not self._queue and not self.spooled:
            return None
        if self.spooled and self._spool is not None:
            batch = await asyncio.to_thread(self._spool.peek, self._batch)
            if await self._send(batch):
                await asyncio.to_thread(self._spool.consume, len(batch))
        else:
            batch = list(islice(self._queue, self._batch))
            if await self._send(batch):
                self._forget(len(batch))
        return 0.0 if len(self._queue) >= self._batch or self.spooled else 0.002

    async def _send(self, batch: list[Entry]) -> bool:
        try:
            if self._failing:
                await self._store.revive()
                await self._store.client.ping()
            await self._streams.add(batch)
        except (*STORE_FAILURES, StoreError) as error:
            self._failing = True
            self._retry_at = time.monotonic() + self._retry_s
            self._retry_s = min(self._retry_s * 2, self._retry_max_s)
            self._health.failure("delivery", error)
            return False
        self._failing = False
        self._retry_s = self._retry_min_s
        self._health.success("delivery")
        self.delivered += len(batch)
        return True

    async def _to_spool(self) -> bool:
        """Move the queue to disk; False: nothing moved."""
        batch = list(islice(self._queue, 2_000))
        if not batch or self._spool is None:
            return False
        try:
            lost = await asyncio.to_thread(self._spool.append, batch)
        except OSError as error:
            if not self._complained:
                self._complained = True
                _log.error(
                    "cannot spool the log: %s; holding up to %d entries in memory", error, self._queue_max
                )
            return False
        self._forget(len(batch))
        self._drop(lost, "the spool")
        return True

    def _forget(self, n: int) -> None:
        for _ in range(n):
            self._queue.popleft()

    def _drop(self, n: int, where: str) -> None:
        if n and not self.dropped:
            _log.error("%s is full: log entries are being dropped (counted in the metrics)", where)
        self.dropped += n
