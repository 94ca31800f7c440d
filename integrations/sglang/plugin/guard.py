"""Between a feature and SGLang: hooks that can be switched off at any moment and never hurt serving."""

import importlib
import logging
import threading
from typing import Any

import msgspec

from kvferry.integrations.sglang.plugin.feature import Feature, Hook
from kvferry.integrations.sglang.plugin.probe import not_applied, why_not
from kvferry.integrations.sglang.plugin.shield import shielded

log = logging.getLogger("kvferry.plugin")

FAILURES = 3  # hooks that raised: then the feature is off until the worker restarts


class Guard:
    """One feature's state in this process: `off` says why it is not active ("" when it is).

    A hook that raises is logged, and stock SGLang goes on (`shield`). After FAILURES the feature is off.
    """

    def __init__(self, feature: Feature) -> None:
        self.feature = feature
        self.off = "" if feature.enabled else "switched off"
        self.failures = 0
        self._targets: tuple[str, ...] = ()
        self._verified = False
        self._lock = threading.Lock()

    @property
    def on(self) -> bool:
        """Whether the hooks act. Found out at the first one: by then SGLang has applied them all."""
        if not self._verified:
            self._verify()
        return not self.off

    def register(self) -> None:
        """Probe SGLang and hand it the hooks; a feature that cannot work gets its reason instead."""
        if self.off:
            return
        try:
            hooks = tuple(self.feature.hooks())
            self._targets = tuple(hook.target for hook in hooks)
            self.off = self.feature.missing() or self._refused() or ""
            if not self.off:
                self._hand_over(hooks)
        except ImportError as error:
            self.off = f"a library is missing: {error}"
        except Exception as error:
            log.exception("%s could not be set up", self.feature.name)
            self.off = f"could not be set up: {type(error).__name__}: {error}"

    def start(self, scheduler: Any, instance: str = "") -> None:
        """Begin in a scheduler, unless the feature refuses this one."""
        if not self.on:
            return
        try:
            self.feature.instance = instance
            refused = self.feature.start(scheduler)
        except Exception as error:
            log.exception("%s could not start", self.feature.name)
            refused = f"could not start: {type(error).__name__}: {error}"
        if refused:
            self.turn_off(refused)

    def turn_off(self, why: str) -> None:
        """Stop acting, for good. From any thread; the first reason stays."""
        with self._lock:
            if self.off:
                return
            self.off = why
        try:
            self.feature.failed(why)
        except Exception:
            log.exception("%s: cleaning up", self.feature.name)

    def failure(self, target: str) -> None:
        """A hook raised (to be called while the exception is handled)."""
        with self._lock:
            self.failures += 1
            count = self.failures
        if count > FAILURES:
            return  # those that were under way in other threads when the feature was turned off
        log.exception("%s: hook on %s failed, SGLang goes on without it", self.feature.name, target)
        if count == FAILURES:
            log.error("%s is off until this worker restarts", self.feature.name)
            self.turn_off(f"{count} hooks failed, the last on {target}")

    def status(self) -> dict[str, Any]:
        """For /server_info: only what msgpack can carry, for SGLang would end on anything else."""
        if not self.on:
            return {"on": False, "why": self.off}
        try:
            told = msgspec.msgpack.decode(msgspec.msgpack.encode(self.feature.describe()))
        except Exception as error:
            log.exception("%s: describing itself", self.feature.name)
            return {"on": True, "why": f"cannot be described: {type(error).__name__}: {error}"}
        return {**told, "on": True}

    def _refused(self) -> str | None:
        return why_not((*self._targets, *self.feature.relies_on), pinned=self.feature.pinned)

    def _hand_over(self, hooks: tuple[Hook, ...]) -> None:
        registry = importlib.import_module("sglang.srt.plugins.hook_registry")
        late = [target for target in self._targets if target in registry.HookRegistry._patched]
        if late:
            self.off = f"another plugin had SGLang apply its hooks before: {', '.join(late)}"
            return
        ready = [
            (hook, shielded(hook, on=lambda: self.on, failure=self.failure)) for hook in hooks
        ]  # all before the first is registered: this refuses hooks that it cannot guard
        for hook, function in ready:
            registry.HookRegistry.register(hook.target, function, registry.HookType(hook.kind))

    def _verify(self) -> None:
        if not self.off:
            relied = (*self._targets, *self.feature.relies_on) if self.feature.pinned else ()
            why = not_applied(self._targets, relied)
            if why:
                log.error("%s is off: %s", self.feature.name, why)
                self.off = why
        self._verified = True
