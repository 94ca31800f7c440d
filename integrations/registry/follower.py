"""Follows the roles in the store: a router runs a new version within a second, and drops nothing for it."""

import asyncio
import logging
import time

from kvferry.integrations.redis.connection import STORE_FAILURES, why
from kvferry.integrations.redis.health import Health
from kvferry.integrations.registry.arms import Arms, Model, Running
from kvferry.integrations.registry.build import build
from kvferry.integrations.registry.guard import Fault
from kvferry.integrations.registry.metrics import ModelMetrics
from kvferry.integrations.registry.roles import Roles
from kvferry.integrations.registry.store import Registry, UnknownVersionError
from kvferry.integrations.registry.task import RegistryTask
from kvferry.models.residual.manifest import ArtifactError
from kvferry.policy.decision import STRUCTURED

log = logging.getLogger("kvferry.models")

INTERVAL_S = 0.5
AGAIN_S = 10.0  # a version that was refused may have been added anew


class Follower(RegistryTask):
    """Reads the roles every `interval_s`; what they name is fetched, verified and built in a thread, and only
    then swapped in. A version that cannot be used is refused, once in the log and the audit, and what runs in
    its role stays; while the store is away, or when it has lost its roles, everything stays.
    """

    def __init__(
        self,
        registry: Registry,
        arms: Arms,
        health: Health,
        metrics: ModelMetrics,
        fault: Fault,
        *,
        router: str,
        interval_s: float = INTERVAL_S,
        again_s: float = AGAIN_S,
    ) -> None:
        super().__init__("models", health, interval_s)
        self.refused: dict[str, str] = {}
        self._registry, self._arms, self._metrics = registry, arms, metrics
        self._fault, self._router = fault, router
        self._again_s = again_s
        self._models: dict[str, Model] = {STRUCTURED: Model()}
        self._again_at = 0.0
        self._lost = False

    async def first(self, timeout_s: float) -> None:
        """Run what the store says, before the first request, if the store answers in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._work()
        except STORE_FAILURES as error:  # `_step` says so to everybody
            log.debug("roles cannot be read yet: %s", why(error))

    async def _work(self) -> None:
        roles, running = await self._registry.roles(), self._arms.running
        if not roles.epoch and running.roles.epoch:
            if not self._lost:
                log.warning("the store has lost its model roles: %s stays", running.roles.text())
            self._lost = True
            return
        self._lost = False
        again = not running.complete and time.monotonic() >= self._again_at
        if (roles.epoch, roles.time_s) == (running.roles.epoch, running.roles.time_s) and not again:
            return
        self._again_at = time.monotonic() + self._again_s
        await self._run(roles, running)

    async def _run(self, roles: Roles, running: Running) -> None:
        wanted = [version for version in (roles.live, roles.canary, roles.shadow) if version]
        found = {version: await self._load(version, roles) for version in wanted}
        missing = [version for version, model in found.items() if model is None]
        live = found[roles.live]
        if live is None and not running.roles.epoch and roles.previous:  # nothing has run here yet
            live = await self._load(roles.previous, roles)
        fresh = Running(
            roles,
            live=live or running.live,
            canary=found.get(roles.canary),
            shadow=found.get(roles.shadow),
            complete=not missing,
        )
        self._arms.run(fresh)
        kept = {STRUCTURED, fresh.live.version, *wanted, roles.previous}
        self._models = {version: model for version, model in self._models.items() if version in kept}
        self.refused = {version: why for version, why in self.refused.items() if version in missing}
        if roles.epoch != running.roles.epoch or fresh.complete != running.complete:
            stays = "" if fresh.live.version == roles.live else f"; {fresh.live.version} goes on as live"
            log.info("models, epoch %d by %s: %s%s", roles.epoch, roles.who, roles.text(), stays)

    async def _load(self, version: str, roles: Roles) -> Model | None:
        """None: it is refused."""
        if version in self._models:
            return self._models[version]
        try:
            model = await asyncio.to_thread(build, version, *await self._registry.fetch(version), self._fault)
        except (ArtifactError, UnknownVersionError) as error:
            await self._refuse(version, str(error), roles)
            return None
        self._models[version] = model
        return model

    async def _refuse(self, version: str, why: str, roles: Roles) -> None:
        if self.refused.get(version) == why:
            return
        self.refused[version] = why
        self._metrics.refused.inc()
        role = roles.role_of(version)
        stays = f"; {self._arms.running.live.version} stays" if role == "live" else ""
        log.error("%s %s is refused: %s%s", role, version, why, stays)
        await self._registry.refused(version, f"router {self._router}", why, roles.epoch)
