"""Tells other routers, through the store, which workers this one sees and how loaded they are."""

import logging

from kvferry.integrations.redis.background import Background
from kvferry.integrations.redis.connection import STORE_FAILURES, Store
from kvferry.integrations.redis.health import Health
from kvferry.integrations.redis.workers import PublishedWorker, Workers
from kvferry.integrations.sglang.fleet import Fleet

log = logging.getLogger("kvferry.publisher")

INTERVAL_S = 1.0
TTL_S = 10.0


class Publisher(Background):
    """Every INTERVAL_S: healthy workers with a TTL of TTL_S, and their loads. A lost worker expires."""

    def __init__(self, store: Store, fleet: Fleet, health: Health, *, router: str) -> None:
        super().__init__("publisher")
        self._workers = Workers(store)
        self._fleet, self._health, self._router = fleet, health, router

    async def close(self) -> None:
        """Stop; what was published expires by itself, or is refreshed by other routers."""
        await self._end(timeout_s=1.0)

    async def _step(self) -> float | None:
        alive = [member.worker for member in self._fleet.members.values() if member.worker.healthy]
        try:
            for worker in alive:
                await self._workers.publish(PublishedWorker.of(worker, self._router), TTL_S)
            loads = {worker.id: worker.load for worker in alive}
            if loads:
                await self._workers.publish_loads(loads, by=self._router, ttl_s=TTL_S)
        except STORE_FAILURES as error:
            self._health.failure("publisher", error)
            return INTERVAL_S
        self._health.success("publisher")
        return INTERVAL_S
