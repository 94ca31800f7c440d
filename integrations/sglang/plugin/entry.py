"""The entry point that SGLang calls in every process of a worker (group `sglang.srt.plugins`)."""

import logging
import sys
import time
import uuid
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from kvferry.integrations.sglang.plugin.feature import Feature, Hook
from kvferry.integrations.sglang.plugin.guard import Guard
from kvferry.integrations.sglang.plugin.settings import WorkerSettings
from kvferry.models.toml_file import ConfigError

log = logging.getLogger("kvferry.plugin")

SCHEDULER = "sglang.srt.managers.scheduler"
STATE = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"
INFO_KEY = "kvferry"


def features(settings: WorkerSettings) -> list[Feature]:
    """All that the plugin can do, as this worker is set up."""
    from kvferry.integrations.sglang.plugin.dual.feature import DualTransport
    from kvferry.integrations.sglang.plugin.localprefill.feature import LocalPrefill
    from kvferry.integrations.sglang.plugin.telemetry.feature import Telemetry

    return [Telemetry(settings), DualTransport(settings), LocalPrefill(settings)]


class Core(Feature):
    """What all features stand on: starts them with the scheduler, and tells about them in /server_info."""

    name = "core"

    def __init__(self, settings: WorkerSettings, guards: Sequence[Guard]) -> None:
        super().__init__(settings)
        self.guards = guards
        self.instance = ""
        self.started_s = 0.0

    @property
    def enabled(self) -> bool:
        return True

    def hooks(self) -> Sequence[Hook]:
        return (
            Hook(f"{SCHEDULER}.Scheduler.__init__", "after", self._scheduler_built),
            Hook(f"{STATE}.get_internal_state", "after", self._add_state),
        )

    def describe(self) -> dict[str, Any]:
        told = {guard.feature.name: guard.status() for guard in self.guards}
        return {
            "version": version("kvferry"),
            "instance": self.instance,
            "started_s": self.started_s,
            "features": told,
        }

    def _scheduler_built(self, _: None, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        self.instance, self.started_s = uuid.uuid4().hex[:16], time.time()
        for guard in self.guards:
            guard.start(scheduler)
        log.info("kvferry worker plugin %s: %s", version("kvferry"), summary(self.guards))

    def _add_state(self, result: Any, *args: Any, **kwargs: Any) -> None:
        result.internal_state[INFO_KEY] = self.describe()


def summary(guards: Sequence[Guard]) -> str:
    """One line: what is on, what is off and why."""
    return "; ".join(f"{g.feature.name} {'on' if g.on else f'off ({g.off})'}" for g in guards)


def load() -> None:
    """Register the hooks of every feature that can work here. Never raises: serving comes first."""
    if SCHEDULER not in sys.modules:
        return  # a process without a scheduler has nothing to hook
    try:
        settings = WorkerSettings.load()
    except ConfigError as error:
        log.error("kvferry worker plugin off: %s", error)
        return
    install(settings)


def install(settings: WorkerSettings) -> Core:
    """Register everything; returns what can be asked for the state of each feature."""
    guards = [Guard(feature) for feature in features(settings)]
    core = Core(settings, guards)
    base = Guard(core)
    base.register()
    if base.off:
        log.error("kvferry worker plugin off: %s", base.off)
        for guard in guards:
            guard.turn_off(base.off)
    for guard in guards:
        guard.register()
    return core
