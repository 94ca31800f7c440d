"""Around one hook: what it raises is caught, and SGLang goes on as if it were not there."""

import inspect
from collections.abc import Callable
from typing import Any

from kvferry.integrations.sglang.plugin.feature import Hook
from kvferry.integrations.sglang.plugin.probe import resolve

On = Callable[[], bool]
Failure = Callable[[str], None]


def shielded(hook: Hook, on: On, failure: Failure) -> Callable[..., Any]:
    """The hook's function as SGLang gets it. Not `on`: it does nothing.

    When it raises, `failure(target)` is called while the exception is handled. `before` and `after` are then
    as if they were not there; `around` calls the original unless the hook already had, and else returns or
    raises what came of that. What the original itself raises passes through untouched.
    Raises TypeError for a hook that would run on outside of all this: see Hook.
    """
    original = inspect.unwrap(resolve(hook.target))
    asynchronous = inspect.iscoroutinefunction(original)
    lazy = inspect.isgeneratorfunction(original) or inspect.isasyncgenfunction(original)
    if hook.kind == "before":
        return _before(hook, on, failure)
    if lazy or (asynchronous and hook.kind == "after"):
        raise TypeError(f"no {hook.kind} hook can be guarded on {hook.target}, which answers later")
    if hook.kind == "after":
        return _after(hook, on, failure)
    if asynchronous != inspect.iscoroutinefunction(hook.function):
        raise TypeError(f"the hook on {hook.target} must be a coroutine function if and only if that is one")
    return _around_coroutine(hook, on, failure) if asynchronous else _around(hook, on, failure)


def _before(hook: Hook, on: On, failure: Failure) -> Callable[..., Any]:
    target, function = hook.target, hook.function

    def before(*args: Any, **kwargs: Any) -> None:
        if on():
            try:
                function(*args, **kwargs)
            except Exception:  # noqa: BLE001 - logged by failure
                failure(target)

    return before


def _after(hook: Hook, on: On, failure: Failure) -> Callable[..., Any]:
    target, function = hook.target, hook.function

    def after(result: Any, *args: Any, **kwargs: Any) -> Any:
        if not on():
            return None
        try:
            return function(result, *args, **kwargs)
        except Exception:  # noqa: BLE001 - logged by failure
            failure(target)
            return None

    return after


def _around(hook: Hook, on: On, failure: Failure) -> Callable[..., Any]:
    target, function = hook.target, hook.function

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not on():
            return original(*args, **kwargs)
        call = _Call(original)
        try:
            return function(call, *args, **kwargs)
        except Exception as error:
            if error is call.error:
                raise
            failure(target)
            raised = call.error
        finally:
            call.error = None  # its traceback holds this frame: a cycle that would keep tensors alive
        if raised is not None:
            raise raised
        return call.result if call.made else original(*args, **kwargs)

    return around


def _around_coroutine(hook: Hook, on: On, failure: Failure) -> Callable[..., Any]:
    target, function = hook.target, hook.function

    async def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not on():
            return await original(*args, **kwargs)
        call = _Call(original)
        try:
            return await function(call.awaited, *args, **kwargs)
        except Exception as error:
            if error is call.error:
                raise
            failure(target)
            raised = call.error
        finally:
            call.error = None
        if raised is not None:
            raise raised
        return call.result if call.made else await original(*args, **kwargs)

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

    async def awaited(self, *args: Any, **kwargs: Any) -> Any:
        """As `__call__`, of a coroutine function."""
        self.made = True
        try:
            self.result = await self._original(*args, **kwargs)
        except BaseException as error:
            self.error = error
            raise
        return self.result
