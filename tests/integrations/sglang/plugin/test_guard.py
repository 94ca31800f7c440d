"""All hooks of a feature or none, and none that hurts what it hooks."""

import asyncio
import gc
import logging
import threading
import weakref
from typing import Any

import pytest

from kvferry.integrations.sglang.plugin.feature import Hook
from kvferry.integrations.sglang.plugin.guard import FAILURES, Guard


def broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("ours")


async def broken_coroutine(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("ours")


def guarded(stock: Any, feature: Any, apply: bool = True) -> Guard:
    """Pin what the feature stands on, register it, and apply as SGLang does."""
    stock.pin(*(path.split(".", 1)[1] for path in (*(h.target for h in feature.hooks()), *feature.relies_on)))
    guard = Guard(feature)
    guard.register()
    if apply:
        stock.apply()
    return guard


def test_hooks_act(stock: Any, toy: Any) -> None:
    seen: list[Any] = []
    feature = toy(
        Hook(stock.path("Worker.add"), "before", lambda worker, a, b: seen.append((a, b))),
        Hook(stock.path("Worker.double"), "after", lambda result, n: result + 1),
        Hook(stock.path("free"), "around", lambda original, n: original(n + 1) * 10),
    )
    assert guarded(stock, feature).on
    assert (stock.worker.add(1, 2), stock.worker.double(4), stock.module.free(1)) == (3, 9, 20)
    assert seen == [(1, 2)]


@pytest.mark.parametrize("kind", ["before", "after", "around"])
def test_a_hook_that_raises_is_as_if_not_there(
    stock: Any, toy: Any, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    feature = toy(Hook(stock.path("Worker.add"), kind, broken))
    guard = guarded(stock, feature)
    for turn in range(1, FAILURES + 3):
        assert stock.worker.add(turn, 1) == turn + 1
        assert guard.on == (turn < FAILURES)
    assert "Worker.add" in guard.off
    assert len(feature.failures) == 1
    assert len([r for r in caplog.records if r.exc_info]) == FAILURES, "each is logged, with its traceback"


def test_the_original_runs_once_when_the_hook_fails_after_it(stock: Any, toy: Any) -> None:
    def late(original: Any, items: list[int]) -> int:
        original(items)
        raise RuntimeError("ours")

    guard = guarded(stock, toy(Hook(stock.path("push"), "around", late)))
    items: list[int] = []
    assert stock.module.push(items) == 1
    assert items == [0]
    assert guard.failures == 1


@pytest.mark.parametrize("kind", ["before", "after", "around"])
def test_what_the_original_raises_passes_untouched(stock: Any, toy: Any, kind: Any) -> None:
    plain = {"before": lambda *a: None, "after": lambda result, *a: None, "around": lambda f, *a: f(*a)}
    guard = guarded(stock, toy(Hook(stock.path("Worker.fail"), kind, plain[kind])))
    for _ in range(FAILURES + 1):
        with pytest.raises(LookupError, match="stock"):
            stock.worker.fail("stock")
    assert guard.on
    assert guard.failures == 0


def test_a_hook_failing_over_the_originals_error_gives_that_error(stock: Any, toy: Any) -> None:
    def clumsy(original: Any, *args: Any) -> Any:
        try:
            return original(*args)
        except LookupError:
            raise RuntimeError("ours") from None

    guard = guarded(stock, toy(Hook(stock.path("Worker.fail"), "around", clumsy)))
    with pytest.raises(LookupError, match="stock") as caught:
        stock.worker.fail("stock")
    assert caught.value.__context__ is None
    assert guard.failures == 1


def test_every_level_of_a_recursion_is_guarded(stock: Any, toy: Any) -> None:
    def sometimes(original: Any, worker: Any, n: int) -> Any:
        if n == 2:
            raise RuntimeError("ours")
        return original(worker, n)

    guard = guarded(stock, toy(Hook(stock.path("Worker.count_down"), "around", sometimes)))
    assert stock.worker.count_down(4) == [4, 3, 2, 1]
    assert guard.failures == 1


async def test_a_coroutine_is_guarded_until_it_ends(stock: Any, toy: Any) -> None:
    async def late(original: Any, worker: Any, key: str) -> Any:
        await asyncio.sleep(0)
        if key == "early":
            raise RuntimeError("ours")
        await original(worker, key)
        raise RuntimeError("ours")

    async def passing(original: Any, worker: Any, key: str) -> Any:
        return await original(worker, key)

    guard = guarded(
        stock,
        toy(
            Hook(stock.path("Worker.fetch"), "around", late),
            Hook(stock.path("Worker.refuse"), "around", passing),
        ),
    )
    assert await stock.worker.fetch("early") == "EARLY"
    assert await stock.worker.fetch("late") == "LATE"
    assert guard.failures == 2
    with pytest.raises(LookupError, match="x"):
        await stock.worker.refuse("x")
    assert guard.failures == 2
    await stock.worker.fetch("early")
    assert not guard.on
    assert await stock.worker.fetch("off") == "OFF"


@pytest.mark.parametrize(
    ("name", "kind", "function"),
    [
        ("Worker.numbers", "around", lambda original, worker: original(worker)),
        ("Worker.numbers", "after", lambda result, worker: None),
        ("Worker.pages", "around", lambda original, worker: original(worker)),
        ("Worker.fetch", "after", lambda result, worker, key: None),
        ("Worker.fetch", "around", lambda original, worker, key: original(worker, key)),
        ("Worker.add", "around", broken_coroutine),
    ],
)
def test_hooks_that_would_run_unguarded_are_refused(
    stock: Any, toy: Any, name: str, kind: Any, function: Any
) -> None:
    fine = Hook(stock.path("free"), "after", lambda result, n: -1)
    guard = guarded(stock, toy(fine, Hook(stock.path(name), kind, function)))
    assert name in guard.off
    assert stock.module.free(1) == 1, "nor is any other hook of the feature there"
    assert not stock.hooks.HookRegistry._hooks


def test_a_feature_that_is_turned_off_leaves_stock_behaviour(stock: Any, toy: Any) -> None:
    guard = guarded(
        stock,
        toy(
            Hook(stock.path("Worker.add"), "around", lambda original, worker, a, b: 0),
            Hook(stock.path("free"), "after", lambda result, n: -1),
        ),
    )
    assert (stock.worker.add(1, 2), stock.module.free(1)) == (0, -1)
    guard.turn_off("enough")
    guard.turn_off("again")
    assert (stock.worker.add(1, 2), stock.module.free(1)) == (3, 1)
    assert guard.status() == {"on": False, "why": "enough"}


def test_threads_that_fail_together_turn_it_off_once(
    stock: Any, toy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    together = threading.Barrier(8)

    def wait_and_fail(original: Any, n: int) -> int:
        together.wait(10)
        raise RuntimeError("ours")

    feature = toy(Hook(stock.path("free"), "around", wait_and_fail))
    guard = guarded(stock, feature)
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(stock.module.free(5))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [5] * 8
    assert guard.failures == 8
    assert len(feature.failures) == 1
    assert len([r for r in caplog.records if r.exc_info]) == FAILURES


def test_an_error_of_the_original_keeps_nothing_alive(stock: Any, toy: Any) -> None:
    """Its traceback reaches the frames below: a cycle would hold tensors until the collector runs."""

    class Tensor:
        pass

    guarded(stock, toy(Hook(stock.path("Worker.fail"), "around", lambda f, worker, why: f(worker, why))))
    tensor = Tensor()
    gone = weakref.ref(tensor)
    gc.disable()
    try:
        with pytest.raises(LookupError):
            stock.worker.fail(tensor)
        del tensor
        assert gone() is None
    finally:
        gc.enable()


def test_switched_off_registers_nothing(stock: Any, toy: Any) -> None:
    feature = toy(Hook(stock.path("free"), "after", lambda result, n: -1))
    feature.switch = False
    guard = guarded(stock, feature)
    assert guard.off == "switched off"
    assert not stock.hooks.HookRegistry._hooks


def test_what_is_missing_is_the_reason(stock: Any, toy: Any) -> None:
    feature = toy(Hook(stock.path("free"), "after", lambda result, n: -1))
    feature.lacks = "KVFERRY_REDIS is not set"
    assert guarded(stock, feature).status() == {"on": False, "why": "KVFERRY_REDIS is not set"}
    assert stock.module.free(1) == 1


@pytest.mark.parametrize("method", ["hooks", "missing"])
def test_a_feature_that_cannot_be_set_up_is_off(
    stock: Any, toy: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feature = toy()
    monkeypatch.setattr(feature, method, broken)
    guard = Guard(feature)
    guard.register()
    assert guard.off == "could not be set up: RuntimeError: ours"


def test_a_library_that_is_missing_is_named(stock: Any, toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    feature = toy()
    monkeypatch.setattr(feature, "missing", lambda: __import__("nowhere"))
    assert guarded(stock, feature).off == "a library is missing: No module named 'nowhere'"


def test_one_hook_that_sglang_could_not_apply_turns_all_off(
    stock: Any, toy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    feature = toy(
        Hook(stock.path("free"), "after", lambda result, n: -1),
        Hook(stock.path("Worker.add"), "after", lambda result, *a: -1),
    )
    guard = guarded(stock, feature, apply=False)
    del stock.module.Worker.add  # between the probe and the patching
    stock.apply()
    assert stock.module.free(1) == 1
    assert guard.off == f"SGLang did not apply the hooks on {stock.path('Worker.add')}"
    guard.start("scheduler")
    assert feature.started == []
    assert guard.off in caplog.text


def test_hooks_that_come_after_another_plugins_are_not_believed_in(stock: Any, toy: Any) -> None:
    """SGLang patches a target once; what is registered for it later is dropped without a word."""
    stock.hooks.HookRegistry.register(stock.path("free"), lambda result, n: None)
    stock.apply()
    guard = guarded(stock, toy(Hook(stock.path("free"), "after", lambda result, n: -1)))
    assert stock.path("free") in guard.off
    assert stock.module.free(1) == 1


@pytest.mark.parametrize("target", ["Worker", "Worker.add", "free"])
def test_a_replacement_by_another_plugin_is_seen(stock: Any, toy: Any, target: str) -> None:
    """Its wrapper names the original, so the source still has the hash that was tested."""
    feature = toy(
        Hook(stock.path("Worker.add"), "after", lambda result, *a: -1), relies_on=(stock.path("free"),)
    )
    guard = guarded(stock, feature, apply=False)
    other = type("Other", (stock.module.Worker,), {}) if target == "Worker" else (lambda *args: 5)
    stock.hooks.HookRegistry.register(stock.path(target), other, stock.hooks.HookType.REPLACE)
    stock.apply()
    assert not guard.on
    assert guard.off == f"another plugin replaces {stock.path(target)}"
    assert stock.worker.add(1, 2) != -1


def test_a_refusal_of_this_scheduler_is_the_reason(stock: Any, toy: Any) -> None:
    feature = toy()
    feature.refuses = "page size 16"
    guard = guarded(stock, feature)
    guard.start("scheduler", "abc")
    assert feature.instance == "abc"
    assert guard.status() == {"on": False, "why": "page size 16"}
    assert feature.failures == ["page size 16"]


def test_a_start_that_raises_is_a_refusal(stock: Any, toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    feature = toy()
    monkeypatch.setattr(feature, "start", broken)
    monkeypatch.setattr(feature, "failed", broken)
    guard = guarded(stock, feature)
    guard.start("scheduler")
    assert guard.off == "could not start: RuntimeError: ours"


@pytest.mark.parametrize("odd", [object(), 1 << 70, {"a": lambda: None}])
def test_only_plain_data_is_told(stock: Any, toy: Any, odd: Any) -> None:
    """SGLang's scheduler would end on what it cannot encode."""
    feature = toy()
    guard = guarded(stock, feature)
    feature.described = {"queue": (1, 2), "on": False}
    assert guard.status() == {"on": True, "queue": [1, 2]}
    feature.described = {"odd": odd}
    assert guard.status()["on"]
    assert "cannot be described" in guard.status()["why"]


def test_failures_are_logged_by_a_logger_of_our_own(
    stock: Any, toy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "kvferry.plugin"):
        guarded(stock, toy(Hook(stock.path("free"), "before", broken)))
        stock.module.free(1)
    assert "toy: hook on" in caplog.text
