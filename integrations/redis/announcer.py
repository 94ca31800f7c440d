"""Keeps the workers of this router published: the heartbeat behind their TTL."""

import contextlib
import time
from collections.abc import Iterable, Mapping

from kvferry.integrations.redis.background import Background
from kvferry.integrations.redis.connection import STORE_FAILURES, Store
from kvferry.integrations.redis.health import Health
from kvferry.integrations.redis.workers import PublishedWorker, Workers
from kvferry.policy.worker import Load


class Announcer(Background):
    """`announce` says what is true now and returns at once; it is repeated three times per `ttl_s`."""

    def __init__(self, store: Store, *, router: str, health: Health, ttl_s: float = 10.0) -> None:
        super().__init__("announcer")
        self._workers = Workers(store)
        self._router, self._health, self._ttl_s = router, health, ttl_s
        self._current: dict[str, PublishedWorker] = {}
        self._loads: Mapping[str, Load] = {}
        self._gone: set[str] = set()
        self._again_at = 0.0
        self._changed = False

    def announce(self, workers: Iterable[PublishedWorker], loads: Mapping[str, Load] | None = None) -> None:
        """The live workers; one announced before and missing now is removed from the store."""
        now = {worker.id: worker for worker in workers}
        self._gone = (self._gone | (self._current.keys() - now.keys())) - now.keys()
        self._changed = self._changed or now != self._current or loads is not None
        self._current = now
        self._loads = dict(loads or self._loads)
        if self._changed or self._gone:
            self._poke()

    async def close(self, *, remove: bool = True) -> None:
        """Stop; `remove`: and take the workers out of the store, else they expire."""
        await self._end(timeout_s=1.0)
        if remove and self._health.up:
            with contextlib.suppress(*STORE_FAILURES):
                for worker_id in self._current:
                    await self._workers.remove(worker_id)

    async def _step(self) -> float | None:
        changed, self._changed = self._changed, False
        try:
            while self._gone:
                worker_id = next(iter(self._gone))
                await self._workers.remove(worker_id)
                self._gone.discard(worker_id)
            if changed or time.monotonic() >= self._again_at:
                for worker in tuple(self._current.values()):
                    await self._workers.publish(worker, self._ttl_s)
                if self._loads:
                    await self._workers.publish_loads(self._loads, by=self._router, ttl_s=self._ttl_s)
                self._again_at = time.monotonic() + self._ttl_s / 3
        except STORE_FAILURES as error:
            self._changed = True
            self._health.failure("announcer", error)
            return 1.0
        self._health.success("announcer")
        return max(0.01, self._again_at - time.monotonic())
