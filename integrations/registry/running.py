"""The registry's part of a router: what follows the store, counts arms, and rolls back."""

from collections.abc import Mapping
from typing import Any

from kvferry.integrations.redis.connection import STORE_FAILURES, Store, why
from kvferry.integrations.redis.health import Health
from kvferry.integrations.registry.arms import Arms
from kvferry.integrations.registry.counts import ArmCounts, totals
from kvferry.integrations.registry.follower import Follower
from kvferry.integrations.registry.metrics import ModelMetrics
from kvferry.integrations.registry.store import Registry
from kvferry.integrations.registry.watchdog import Watchdog

FIRST_S = 2.0


class Models:
    """`instance` names this router's process among all that ever count arms, `router` it in the audit."""

    def __init__(
        self, store: Store, arms: Arms, health: Health, metrics: ModelMetrics, *, router: str, instance: str
    ) -> None:
        self.arms = arms
        self._registry, self._counts = Registry(store), ArmCounts(store, instance)
        self._watchdog = Watchdog(self._registry, self._counts, arms, health, metrics, router=router)
        self._follower = Follower(self._registry, arms, health, metrics, self._watchdog.fault, router=router)
        arms.counted = metrics.counted
        metrics.watch(arms)

    async def start(self) -> None:
        """Run what the store asks for, if it answers in time, and go on following it."""
        await self._follower.first(FIRST_S)
        self._follower.start()
        self._watchdog.start()

    async def close(self) -> None:
        """Stop; arms that have ended since the last count are told to the store."""
        await self._follower.close()
        await self._watchdog.close()

    async def describe(self) -> Mapping[str, Any]:
        """Roles, what this router runs of them, versions, and how the arms of all routers fare."""
        running = self.arms.running
        roles = running.roles
        told: dict[str, Any] = {
            "roles": {**roles.plain(), "epoch": roles.epoch, "since": roles.since, "who": roles.who},
            "running": {
                role: model.version if model is not None else ""
                for role, model in (
                    ("live", running.live),
                    ("canary", running.canary),
                    ("shadow", running.shadow),
                )
            },
            "refused": self._follower.refused,
            "shares": self.arms.stretch.shares,
        }
        try:
            versions = await self._registry.versions()
            arms = totals(await self._counts.read(roles.since))
        except STORE_FAILURES as error:
            return {**told, "store": why(error)}
        return {**told, "versions": sorted(versions), "arms": arms}
