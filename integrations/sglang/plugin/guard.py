"""Between a feature and SGLang: hooks that can be switched off at any moment and never hurt serving."""

import importlib
import logging
from collections.abc import Callable
from typing import Any

from kvferry.integrations.sglang.plugin.feature import Feature, Hook
from kvferry.integrations.sglang.plugin.probe import why_not

log = logging.getLogger("kvferry.plugin")

FAILURES = 3  # hooks that raised: more, and the feature is off until the worker restarts


class Guard:
    """One feature's state in this process: `off` says why it is not active ("" when it is).

    A hook that raises is logged, and stock SGLang goes on: `before` and `after` as if it were not there,
    `around` by calling the original unless the hook already had. What the original itself raises passes
    through untouched. After FAILURES the feature is turned off.
    """

    def __init__(self, feature: Feature) -> None:
        self.feature = feature
        self.off = "" if feature.enabled else "switched off"
        self.failures = 0
        self._targets: tuple[str, ...] = ()
        self._verified = False

    @property
    def on(self) -> bool:
        """Whether the hooks act. Found out at the first one: by then SGLang has applied them all."""
        if not self._verified:
            self._verified = True
            self._verify()
        return not self.off

    def register(self) -> None:
        """Probe SGLang and hand it the hooks; a feature that cannot work gets its reason instead."""
        if self.off:
            return
        hooks = tuple(self.feature.hooks())
        self._targets = tuple(hook.target for hook in hooks)
        self.off = self.feature.missing() or why_not((*self._targets, *self.feature.relies_on)) or ""
        if self.off:
            return
        registry = importlib.import_module("sglang.srt.plugins.hook_registry")
        for hook in hooks:
            kind = registry.HookType(hook.kind)
            registry.HookRegistry.register(hook.target, self._guarded(hook), kind)

    def start(self, scheduler: Any) -> None:
        """Begin in a scheduler, unless the feature refuses this one."""
        if not self.on:
            return
        try:
            refused = self.feature.start(scheduler)
        except Exception as error:
            log.exception("%s could not start", self.feature.name)
            refused = f"could not start: {type(error).__name__}: {error}"
        if refused:
            self.turn_off(refused)

    def turn_off(self, why: str) -> None:
        """Stop acting, for good."""
        if self.off:
            return
        self.off = why
        try:
            self.feature.failed(why)
        except Exception:
            log.exception("%s: cleaning up", self.feature.name)

    def failure(self, target: str) -> None:
        """A hook raised (to be called while the exception is handled)."""
        self.failures += 1
        log.exception("%s: hook on %s failed, SGLang goes on without it", self.feature.name, target)
        if self.failures >= FAILURES:
            self.turn_off(f"{self.failures} hooks failed, the last on {target}")

    def status(self) -> dict[str, Any]:
        """For /server_info."""
        if self.off:
            return {"on": False, "why": self.off}
        try:
            return {"on": True, **self.feature.describe()}
        except Exception as error:
            log.exception("%s: describing itself", self.feature.name)
            return {"on": True, "why": f"cannot be described: {type(error).__name__}"}

    def _verify(self) -> None:
        registry = importlib.import_module("sglang.srt.plugins.hook_registry")
        unpatched = [t for t in self._targets if t not in registry.HookRegistry._patched]
        if unpatched and not self.off:
            self.off = f"SGLang did not apply the hooks on {', '.join(unpatched)}"

    def _guarded(self, hook: Hook) -> Callable[..., Any]:
        wrap = {"before": self._before, "after": self._after, "around": self._around}[hook.kind]
        return wrap(hook.target, hook.function)

    def _before(self, target: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def before(*args: Any, **kwargs: Any) -> None:
            if self.on:
                try:
                    function(*args, **kwargs)
                except Exception:  # noqa: BLE001 - logged by failure
                    self.failure(target)

        return before

    def _after(self, target: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def after(result: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return None
            try:
                return function(result, *args, **kwargs)
            except Exception:  # noqa: BLE001 - logged by failure
                self.failure(target)
                return None

        return after

    def _around(self, target: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return original(*args, **kwargs)
            call = _Call(original)
            try:
                return function(call, *args, **kwargs)
            except Exception as error:
                if error is call.error:
                    raise
                self.failure(target)
                if call.error is not None:
                    raise call.error from None
                return call.result if call.made else original(*args, **kwargs)

        return around


class _Call:
    """The original as an `around` hook sees it, remembering whether it was called and what came of it."""

    __slots__ = ("_original", "error", "made", "result")

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original
        self.made = False
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.made = True
        try:
            self.result = self._original(*args, **kwargs)
        except BaseException as error:
            self.error = error
            raise
        return self.result
