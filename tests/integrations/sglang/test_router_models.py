"""Routers run what the registry says: hot-loaded, in arms, with a shadow, and rolled back by themselves."""

import asyncio
import importlib.util
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kvferry.integrations.log.reader import ReadReport, read_store
from kvferry.integrations.redis.connection import Store, open_store
from kvferry.integrations.redis.embedded import EmbeddedValkey
from kvferry.integrations.registry import build
from kvferry.integrations.registry.store import Registry

ARTIFACTS = Path(__file__).parents[2] / "models" / "residual" / "artifacts.py"
PROMPT = {"text": "hello " * 20, "stream": True, "sampling_params": {"max_new_tokens": 8}}
LOW, HIGH = ((-3.0, -3.0, -3.0), (3.0, 3.0, 3.0))


@pytest.fixture(scope="module")
def artifacts() -> Any:
    spec = importlib.util.spec_from_file_location(f"artifacts_{uuid.uuid4().hex}", ARTIFACTS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def loves_splits(artifacts: Any) -> Any:
    """A model that takes splits to be ever so fast, and all else to be slow."""
    return artifacts.artifact("structured", calibration={"ttft": (HIGH, LOW), "itl": (HIGH, LOW)}, seed=1)


@pytest.fixture
def hates_splits(artifacts: Any) -> Any:
    return artifacts.artifact("structured", calibration={"ttft": (LOW, HIGH), "itl": (LOW, HIGH)}, seed=2)


@pytest.fixture
async def own_url() -> AsyncIterator[str]:
    """A store of this test's own: roles are for all routers that share one."""
    server = EmbeddedValkey()
    await server.start()
    yield server.url
    server.stop()


@pytest.fixture
async def own_store(own_url: str) -> AsyncIterator[Store]:
    opened = await open_store(own_url)
    yield opened
    await opened.close()


@pytest.fixture
def registry(own_store: Store) -> Registry:
    return Registry(own_store)


async def change(registry: Registry, made: Any, how: Callable[[Any], Any]) -> Any:
    await registry.add(made, "ann")
    roles = await registry.roles()
    return await registry.change(roles, how(roles), who="ann", command="test")


async def streamed(router: Any, count: int) -> list[Any]:
    """The records of so many requests, a few at a time."""
    records = []
    for _ in range(0, count, 10):
        answers = await asyncio.gather(*(router.post(body=PROMPT) for _ in range(10)))
        assert {answer.status for answer in answers} == {200}
        records += [router.record(answer.headers) for answer in answers]
    return records


async def test_a_version_is_hot_loaded_and_no_request_is_dropped(
    pair: Any,
    route: Any,
    fake: Any,
    registry: Registry,
    own_url: str,
    loves_splits: Any,
    hates_splits: Any,
    eventually: Any,
) -> None:
    workers = await pair()
    for one in workers.all:
        one.act = fake.Act(gap_s=0.02)
    routers = [await route(*workers.all, redis=own_url, explore=0.0) for _ in range(2)]
    going, statuses, seen = True, Counter[int](), {router.ferry.name: [] for router in routers}

    async def load(router: Any) -> None:
        while going:
            answer = await router.post(body=PROMPT)
            statuses[answer.status] += 1
            assert b"[DONE]" in answer.raw
            seen[router.ferry.name].append(router.record(answer.headers).model_version)

    tasks = [asyncio.create_task(load(router)) for router in routers for _ in range(4)]
    try:
        for made in (loves_splits, hates_splits):
            await change(registry, made, lambda roles, made=made: roles.promoted(made.version))
            for router in routers:
                kept = seen[router.ferry.name]
                await eventually(lambda kept=kept, made=made: kept[-1:] == [made.version])
    finally:
        going = False
        await asyncio.gather(*tasks)
    assert set(statuses) == {200}
    for versions in seen.values():
        order = list(dict.fromkeys(versions))
        assert order[-2:] == [loves_splits.version, hates_splits.version]


async def test_arms_decide_as_they_are_named(
    pair: Any, route: Any, registry: Registry, own_url: str, loves_splits: Any, eventually: Any, store: Any
) -> None:
    workers = await pair()
    router = await route(*workers.all, redis=own_url, safe_share=0.3, explore=0.0)
    assert {record.arm for record in await streamed(router, 10)} == {"live"}
    await change(registry, loves_splits, lambda roles: roles.canaried(loves_splits.version, 0.3))
    await eventually(lambda: router.ferry.arms.running.canary is not None)
    records = await streamed(router, 80)
    found = Counter((record.arm, record.mode) for record in records)
    assert set(found) == {("live", "live"), ("canary", "canary"), ("safe", "live")}
    for record in records:
        if record.arm == "canary":
            assert (record.model_version, record.chosen.mode) == (loves_splits.version, "split")
        else:
            assert record.model_version == "structured"
        assert (record.policy == "length_threshold(2048)") == (record.arm == "safe")
    told = json.loads((await router.get("/kvferry/models")).raw)
    assert told["roles"]["canary"] == told["running"]["canary"] == loves_splits.version
    assert told["shares"] == pytest.approx({"safe": 0.3, "canary": 0.3, "live": 0.4})
    assert told["versions"] == [loves_splits.version]

    async def counted() -> bool:
        arms = json.loads((await router.get("/kvferry/models")).raw)["arms"]
        return {name: of["requests"] for name, of in arms.items()} == Counter(r.arm for r in records)

    await eventually(counted)
    metrics = (await router.get("/metrics")).raw.decode()
    assert f'kvferry_model_info{{role="canary",version="{loves_splits.version}"}} 1.0' in metrics


async def test_a_shadow_is_logged_and_changes_nothing(
    pair: Any,
    route: Any,
    registry: Registry,
    own_url: str,
    own_store: Store,
    loves_splits: Any,
    eventually: Any,
) -> None:
    workers = await pair()
    router = await route(*workers.all, redis=own_url, explore=0.0)
    await change(registry, loves_splits, lambda roles: roles.shadowed(loves_splits.version))
    await eventually(lambda: router.ferry.arms.running.shadow is not None)
    acted = {record.id: record for record in await streamed(router, 10)}
    shadows: dict[str, Any] = {}

    async def logged() -> bool:
        records = [record async for record in read_store(own_store, ReadReport())]
        shadows.update({record.id: record for record in records if record.mode == "shadow"})
        return set(shadows) == set(acted)

    await eventually(logged)
    for name, shadow in shadows.items():
        assert shadow.outcome is None
        assert (shadow.model_version, shadow.chosen.mode) == (loves_splits.version, "split")
        assert (acted[name].mode, acted[name].model_version) == ("live", "structured")
        assert shadow.request.seed == acted[name].request.seed
        assert shadow.time == acted[name].time
    # neither holds on to a request that has ended
    assert not router.ferry.shadows._waiting
    await eventually(lambda: not router.ferry.arms._waiting)
    assert router.idle()


async def test_a_bad_version_is_rolled_back_by_itself(
    pair: Any,
    route: Any,
    fake: Any,
    registry: Registry,
    own_url: str,
    loves_splits: Any,
    hates_splits: Any,
    eventually: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers = await pair()
    for one in workers.dec:
        one.act = fake.Act(delay_s=0.6)
    router = await route(
        *workers.all, redis=own_url, safe_share=0.3, slo_ttft_s=0.3, slo_itl_s=5.0, explore=0.0
    )
    await change(registry, hates_splits, lambda roles: roles.promoted(hates_splits.version))
    await change(registry, loves_splits, lambda roles: roles.promoted(loves_splits.version))
    arms = router.ferry.arms
    await eventually(lambda: arms.running.live.version == loves_splits.version)
    served = []
    while arms.running.live.version == loves_splits.version:
        served += await streamed(router, 10)
        assert len(served) < 500
        await asyncio.sleep(0.1)
    assert arms.running.live.version == hates_splits.version
    entry = (await registry.audit())[-1]
    assert (entry.command, entry.version) == ("rollback", loves_splits.version)
    assert entry.who == f"router {router.ferry.name}"
    assert entry.reason.startswith("automatic: live")
    assert "the safe rule" in entry.reason
    assert any("ROLLED BACK" in record.getMessage() for record in caplog.records)
    assert b'kvferry_model_rollbacks_total{cause="regression"} 1.0' in (await router.get("/metrics")).raw
    assert {record.chosen.mode for record in (await streamed(router, 10))} == {"colocated"}


async def test_a_version_that_breaks_costs_no_request_and_is_rolled_back(
    pair: Any,
    route: Any,
    registry: Registry,
    own_url: str,
    loves_splits: Any,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        """Works when it is tried, and never again."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.version, self.left = inner, inner.version, 1

        def correct(self, features: Any) -> Any:
            if features.shape[1] != 3 or not self.left:
                raise FloatingPointError("overflow")
            self.left -= 1
            return self.inner.correct(features)

    inner = build.corrector
    monkeypatch.setattr(build, "corrector", lambda made: Broken(inner(made)))
    workers = await pair(colocated=3)  # four plans
    router = await route(*workers.all, redis=own_url, safe_share=0.0, explore=0.0)
    await change(registry, loves_splits, lambda roles: roles.promoted(loves_splits.version))
    await eventually(lambda: router.ferry.arms.running.live.version == loves_splits.version)
    records = await streamed(router, 10)
    assert {record.model_version for record in records} == {"structured"}
    assert {record.fallback for record in records} == {"the model failed: FloatingPointError: overflow"}
    await eventually(lambda: router.ferry.arms.running.live.version == "structured")
    entry = (await registry.audit())[-1]
    assert entry.reason.startswith(f"automatic: {loves_splits.version} failed in 5 requests")
    assert b'kvferry_model_rollbacks_total{cause="faults"} 1.0' in (await router.get("/metrics")).raw


async def test_a_router_that_starts_again_runs_the_same_version(
    pair: Any, route: Any, registry: Registry, own_url: str, loves_splits: Any
) -> None:
    workers = await pair()
    await change(registry, loves_splits, lambda roles: roles.promoted(loves_splits.version))
    for _ in range(2):
        router = await route(*workers.all, redis=own_url, safe_share=0.0, explore=0.0)
        (record, *_) = await streamed(router, 10)
        assert record.model_version == loves_splits.version
