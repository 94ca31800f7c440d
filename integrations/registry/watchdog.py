"""Tells the store what the arms have met, and rolls back what does worse than the rest."""

import contextlib
import logging
import time
from collections import deque

from kvferry.integrations.redis.background import Background
from kvferry.integrations.redis.connection import STORE_FAILURES
from kvferry.integrations.redis.health import Health
from kvferry.integrations.registry.arms import Arms
from kvferry.integrations.registry.counts import ArmCounts
from kvferry.integrations.registry.judge import Verdict, judge
from kvferry.integrations.registry.metrics import ModelMetrics
from kvferry.integrations.registry.store import ConflictError, Registry

log = logging.getLogger("kvferry.models")

INTERVAL_S = 1.0
# A version that fails so often in so short a time is broken.
FAULTS = 5
FAULTS_WITHIN_S = 600.0


class Watchdog(Background):
    """Any router may find a regression, in the sums of all; the first one rolls it back, the others follow.
    `fault` is what `Guarded` calls: each one costs its request nothing but the correction.
    """

    def __init__(
        self,
        registry: Registry,
        counts: ArmCounts,
        arms: Arms,
        health: Health,
        metrics: ModelMetrics,
        *,
        router: str,
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__("watchdog")
        self._registry, self._counts, self._arms = registry, counts, arms
        self._health, self._metrics, self._router = health, metrics, router
        self._interval_s = interval_s
        self._faults: dict[str, deque[float]] = {}
        self._broken: dict[str, str] = {}

    def fault(self, version: str, what: str) -> None:
        """`version` has failed in one request."""
        self._metrics.faults.labels(version).inc()
        times = self._faults.setdefault(version, deque(maxlen=FAULTS))
        if not times:
            log.warning("%s failed, the structured prediction decides: %s", version, what)
        times.append(time.monotonic())
        if len(times) == FAULTS and times[-1] - times[0] <= FAULTS_WITHIN_S and version not in self._broken:
            self._broken[version] = f"{version} failed in {FAULTS} requests, the last time with {what}"

    async def close(self) -> None:
        """Stop, with what has been counted in the store if that answers."""
        await self._end(timeout_s=1.0)
        if self._arms.changed and self._health.up:
            with contextlib.suppress(*STORE_FAILURES):
                await self._counts.write(self._arms.changed)

    async def _step(self) -> float | None:
        changed, self._arms.changed = self._arms.changed, set()
        try:
            if changed:
                await self._counts.write(changed)
            for version, why in tuple(self._broken.items()):
                await self._roll_back(Verdict(version, why), "faults")
            running = self._arms.running
            if running.roles.learned:
                verdict = judge(running.roles, await self._counts.read(running.roles.since))
                if verdict is not None:
                    await self._roll_back(verdict, "regression")
        except STORE_FAILURES as error:
            self._arms.changed |= changed
            self._health.failure("arms", error)
            return self._interval_s
        self._health.success("arms")
        return self._interval_s

    async def _roll_back(self, verdict: Verdict, cause: str) -> None:
        roles, version = await self._registry.roles(), verdict.version
        fresh = roles.without(version)
        # a verdict is on the roles that this router runs, not on those that somebody has set meanwhile
        if fresh is not roles and (cause == "faults" or roles.since == self._arms.running.roles.since):
            try:
                done = await self._registry.change(
                    roles,
                    fresh,
                    who=f"router {self._router}",
                    command="rollback",
                    version=version,
                    reason=f"automatic: {verdict.reason}",
                )
            except ConflictError as error:
                log.info("%s: looked at again, as it was %s", version, error)
                return
            self._metrics.rollbacks.labels(cause).inc()
            log.error("ROLLED BACK %s: %s; now %s", version, verdict.reason, done.text())
        self._broken.pop(version, None)
        self._faults.pop(version, None)
