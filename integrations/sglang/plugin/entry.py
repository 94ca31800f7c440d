"""The entry point that SGLang calls in every process of a worker (group `sglang.srt.plugins`)."""

import importlib
import logging
import multiprocessing
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
# Run in the HTTP server's process, which also starts the bootstrap registries.
FRONT = ("sglang.srt.entrypoints.", "sglang.srt.managers.tokenizer", "sglang.srt.disaggregation.utils.")
INFO_KEY = "kvferry"

_PLUGIN = "kvferry.integrations.sglang.plugin"
# SGLang nests hooks in this order: telemetry, outermost, sees what another feature keeps from SGLang.
FEATURES = {
    "dual_transport": (f"{_PLUGIN}.dual.feature", "DualTransport"),
    "local_prefill": (f"{_PLUGIN}.localprefill.feature", "LocalPrefill"),
    "telemetry": (f"{_PLUGIN}.telemetry.feature", "Telemetry"),
}


installed: "Core | None" = None  # what this process runs, for `check`


def features(settings: WorkerSettings) -> list[Feature]:
    """All that the plugin can do, as this worker is set up; what cannot be imported here, with its reason."""
    found: list[Feature] = []
    for name, (module, class_name) in FEATURES.items():
        try:
            found.append(getattr(importlib.import_module(module), class_name)(settings))
        except Exception as error:
            if not isinstance(error, ImportError):
                log.exception("%s cannot be built, the rest goes on", name)
            found.append(_absent(name, settings, f"cannot be built: {type(error).__name__}: {error}"))
    return found


def _absent(name_: str, settings: WorkerSettings, why: str) -> Feature:
    class Absent(Feature):
        name = name_

        @property
        def enabled(self) -> bool:
            return bool(getattr(settings, name_).enabled)

        def hooks(self) -> Sequence[Hook]:
            return ()

        def missing(self) -> str:
            return why

    return Absent(settings)


class Core(Feature):
    """What all features stand on: starts them with the scheduler, and tells about them in /server_info.

    It changes nothing, so it does its best in any SGLang: to say there why all the rest is off.
    """

    name = "core"
    pinned = False

    def __init__(self, settings: WorkerSettings, guards: Sequence[Guard]) -> None:
        super().__init__(settings)
        self.guards = guards
        self.version = version("kvferry")
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
            "version": self.version,
            "instance": self.instance,
            "started_s": self.started_s,
            "features": told,
        }

    def _scheduler_built(self, _: None, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        self.instance, self.started_s = uuid.uuid4().hex[:16], time.time()
        for guard in self.guards:
            guard.start(scheduler, self.instance)
        log.disabled = False  # SGLANG_LOGGING_CONFIG_PATH disables every logger that was there before it
        wanted = all(guard.on for guard in self.guards if guard.feature.enabled)
        level = logging.INFO if wanted else logging.WARNING
        log.log(level, "kvferry worker plugin %s: %s", self.version, summary(self.guards))

    def _add_state(self, result: Any, *args: Any, **kwargs: Any) -> None:
        result.internal_state[INFO_KEY] = self.describe()


def summary(guards: Sequence[Guard]) -> str:
    """One line: what is on, what is off and why."""
    return "; ".join(f"{g.feature.name} {'on' if g.on else f'off ({g.off})'}" for g in guards)


def load() -> None:
    """Register the hooks of every feature that can work here. SGLang logs what this raises, and goes on."""
    wrong = ""
    try:
        settings = WorkerSettings.load()
    except ConfigError as error:
        settings, wrong = WorkerSettings.load({}), str(error)
    if SCHEDULER in sys.modules or (not wrong and _in_front(settings)):
        global installed
        installed = install(settings, wrong)


def install(settings: WorkerSettings, wrong: str = "") -> Core:
    """Register everything; returns what can be asked for the state of each feature.

    `wrong`: the configuration was not understood. Nothing is turned on then, and the reason is told.
    """
    guards = [Guard(feature) for feature in features(settings)]
    core = Core(settings, guards)
    base = Guard(core)
    base.register()
    for guard in guards:
        if wrong or base.off:
            guard.off = wrong or base.off
        guard.register()
    if wrong or base.off:
        log.error("kvferry worker plugin off: %s", wrong or base.off)
    return core


def _in_front(settings: WorkerSettings) -> bool:
    """Whether this is the HTTP server's process before it imported the rest, and something is to be hooked
    there. (The detokenizer's process, where nothing is, has a parent.)"""
    if multiprocessing.parent_process() is not None:
        return False
    targets = [hook.target for f in features(settings) if f.enabled for hook in f.hooks()]
    return any(target.startswith(FRONT) for target in targets)
