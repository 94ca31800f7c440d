"""Tells the store what the arms have met, and rolls back what does worse than the rest."""

import contextlib
import logging
import time
from collections import deque
from dataclasses import replace

from kvferry.integrations.redis.connection import STORE_FAILURES
from kvferry.integrations.redis.health import Health
from kvferry.integrations.registry.arms import Arms
from kvferry.integrations.registry.counts import ArmCounts
from kvferry.integrations.registry.judge import Verdict, judge
from kvferry.integrations.registry.metrics import ModelMetrics
from kvferry.integrations.registry.roles import Roles
from kvferry.integrations.registry.store import ConflictError, Registry, UnknownVersionError
from kvferry.integrations.registry.task import RegistryTask

log = logging.getLogger("kvferry.models")

INTERVAL_S = 1.0
# A version that fails so often in so short a time is broken.
FAULTS = 5
FAULTS_WITHIN_S = 600.0


class Watchdog(RegistryTask):
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
        super().__init__("arms", health, interval_s)
        self._registry, self._counts, self._arms = registry, counts, arms
        self._metrics, self._router = metrics, router
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
        await super().close()
        if self._arms.changed and self._health.up:
            with contextlib.suppress(*STORE_FAILURES):
                await self._counts.write(self._arms.changed)

    async def _work(self) -> None:
        changed, self._arms.changed = self._arms.changed, set()
        try:
            if changed:
                await self._counts.write(changed)
        except STORE_FAILURES:
            self._arms.changed |= changed
            raise
        for version, why in tuple(self._broken.items()):
            await self._roll_back(Verdict(version, why), "faults")
        running = self._arms.running
        if running.roles.learned:
            verdict = judge(running.roles, await self._counts.read(running.roles.since))
            if verdict is not None:
                await self._roll_back(verdict, "regression")

    async def _roll_back(self, verdict: Verdict, cause: str) -> None:
        roles, version = await self._registry.roles(), verdict.version
        fresh = roles.without(version)
        # a verdict is on the roles that this router runs, not on those that somebody has set meanwhile
        if fresh is not roles and (cause == "faults" or roles.since == self._arms.running.roles.since):
            try:
                done = await self._change(roles, fresh, verdict)
            except ConflictError as error:
                log.info("%s: looked at again, as it was %s", version, error)
                return
            self._metrics.rollbacks.labels(cause).inc()
            log.error("ROLLED BACK %s: %s; now %s", version, verdict.reason, done.text())
        self._broken.pop(version, None)
        self._faults.pop(version, None)

    async def _change(self, roles: Roles, fresh: Roles, verdict: Verdict) -> Roles:
        who, reason = f"router {self._router}", f"automatic: {verdict.reason}"
        given = {"who": who, "command": "rollback", "version": verdict.version}
        try:
            return await self._registry.change(roles, fresh, reason=reason, **given)
        except UnknownVersionError as error:  # of what was before: without any model there is always a way
            bare = replace(Roles(), epoch=roles.epoch, since=roles.since)
            return await self._registry.change(roles, bare, reason=f"{reason}; {error}", **given)
