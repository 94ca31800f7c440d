"""What other routers do, as last heard: read by the decision path, refreshed beside it."""

import time
from collections.abc import Mapping

from kvferry.integrations.redis.background import Background
from kvferry.integrations.redis.connection import STORE_FAILURES, Store
from kvferry.integrations.redis.health import Health
from kvferry.integrations.redis.leases import Leases, LeaseTotals, total_of
from kvferry.integrations.redis.workers import PublishedLoad, PublishedWorker, Workers

_NOTHING = LeaseTotals()


class View(Background):
    """`others`: worker id -> lease totals of the other routers. `workers`, `loads`: as published by any.

    Refreshed every `interval_s`; while the store is away the last picture stays, and `age_s` grows.
    """

    def __init__(
        self, store: Store, *, router: str, health: Health, interval_s: float = 0.1, workers_every: int = 10
    ) -> None:
        super().__init__("view")
        self.others: Mapping[str, LeaseTotals] = {}
        self.workers: tuple[PublishedWorker, ...] = ()
        self.loads: Mapping[str, PublishedLoad] = {}
        self._router, self._health = router, health
        self._leases, self._workers = Leases(store, router), Workers(store)
        self._interval_s, self._workers_every = interval_s, workers_every
        self._rounds = 0
        self._read_at: float | None = None

    def age_s(self) -> float:
        """Seconds since the leases were read; infinite before the first time."""
        return float("inf") if self._read_at is None else time.monotonic() - self._read_at

    def on(self, worker_id: str, *, max_age_s: float = 15.0) -> LeaseTotals:
        """What other routers have in flight on a worker; nothing when the picture is too old."""
        if self.age_s() > max_age_s:
            return _NOTHING
        return self.others.get(worker_id, _NOTHING)

    async def close(self) -> None:
        await self._end(timeout_s=1.0)

    async def refresh(self) -> None:
        """Read everything now. Raises what redis-py raises."""
        asked_at = time.monotonic()
        self.others = total_of(await self._leases.totals(), without=self._router)
        self._read_at = asked_at
        if self._rounds % self._workers_every == 0:
            self.workers = await self._workers.list()
            self.loads = await self._workers.loads(worker.id for worker in self.workers)
        self._rounds += 1

    async def _step(self) -> float | None:
        try:
            await self.refresh()
        except STORE_FAILURES as error:
            self._health.failure("view", error)
            return max(self._interval_s, 0.5)
        self._health.success("view")
        return self._interval_s
