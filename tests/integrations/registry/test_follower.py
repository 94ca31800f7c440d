"""A router follows the roles; what cannot be used is refused, and what runs stays."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kvferry.integrations.redis.connection import Store, open_store
from kvferry.integrations.redis.embedded import EmbeddedValkey
from kvferry.integrations.redis.health import Health
from kvferry.integrations.registry.arms import Arms, Running
from kvferry.integrations.registry.counts import ArmCounts
from kvferry.integrations.registry.judge import Verdict
from kvferry.integrations.registry.metrics import ModelMetrics
from kvferry.integrations.registry.roles import Roles
from kvferry.integrations.registry.running import Models
from kvferry.integrations.registry.store import Registry
from kvferry.integrations.registry.watchdog import Watchdog


class Router:
    """The registry's part of one."""

    def __init__(self, store: Store, name: str = "r1") -> None:
        self.arms, self.health = Arms(0.1), Health("test")
        self.prometheus = CollectorRegistry()
        self.models = Models(
            store, self.arms, self.health, ModelMetrics(self.prometheus), router=name, instance=f"{name}#1"
        )

    @property
    def live(self) -> str:
        return self.arms.running.live.version

    def metric(self, name: str, **labels: str) -> float | None:
        return self.prometheus.get_sample_value(name, labels)


@pytest.fixture
async def router(store: Store) -> AsyncIterator[Any]:
    """await router(): one that follows the store."""
    made = []

    async def make(name: str = "r1") -> Router:
        made.append(Router(store, name))
        await made[-1].models.start()
        return made[-1]

    yield make
    for one in made:
        await one.models.close()


async def put(registry: Registry, *models: Any) -> None:
    for made in models:
        await registry.add(made, "ann")


async def promote(registry: Registry, made: Any) -> Roles:
    roles = await registry.roles()
    return await registry.change(roles, roles.promoted(made.version), who="ann", command="promote")


async def test_a_router_runs_what_is_promoted(
    router: Any, registry: Registry, artifact: Any, eventually: Any
) -> None:
    one, other = artifact(1), artifact(2)
    await put(registry, one, other)
    running = await router()
    assert running.live == "structured"
    await promote(registry, one)
    await eventually(lambda: running.live == one.version)
    roles = await registry.roles()
    await registry.change(roles, roles.canaried(other.version, 0.2), who="ann", command="canary")
    await eventually(lambda: running.arms.running.canary is not None)
    assert running.arms.stretch.shares == pytest.approx({"safe": 0.1, "canary": 0.2, "live": 0.7})
    assert running.metric("kvferry_model_info", role="canary", version=other.version) == 1.0
    assert running.metric("kvferry_model_epoch") == 2.0
    roles = await registry.roles()
    await registry.change(roles, roles.rolled_back(live=True), who="ann", command="rollback")
    await eventually(lambda: running.live == "structured")
    assert running.arms.stretch.shares == {"live": 1.0}


async def test_a_router_that_starts_runs_it_from_its_first_request_on(
    router: Any, registry: Registry, artifact: Any
) -> None:
    await put(registry, artifact())
    await promote(registry, artifact())
    assert (await router()).live == artifact().version


async def test_a_router_that_starts_without_what_is_live_runs_what_was_before(
    router: Any, registry: Registry, store: Store, artifact: Any
) -> None:
    one, other = artifact(1), artifact(2)
    await put(registry, one, other)
    await promote(registry, one)
    await promote(registry, other)
    await store.client.delete(store.keys.model_weights(other.version))
    running = await router()
    assert running.live == one.version
    assert not running.arms.running.complete


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (
            lambda manifest, weights: (manifest, weights[:-1] + bytes([weights[-1] ^ 1])),
            "changed or cut short",
        ),
        (lambda manifest, weights: (manifest, weights[: len(weights) // 2]), "changed or cut short"),
        (lambda manifest, weights: (manifest.replace(b"model.v1", b"model.v2"), weights), "update kvferry"),
        (lambda manifest, weights: (manifest, None), "weights are not in the store"),
    ],
    ids=["tampered", "truncated", "newer", "missing"],
)
async def test_what_was_damaged_in_the_store_is_refused_once_and_what_runs_stays(
    router: Any,
    registry: Registry,
    store: Store,
    artifact: Any,
    eventually: Any,
    caplog: pytest.LogCaptureFixture,
    spoil: Any,
    told: str,
) -> None:
    one, other = artifact(1), artifact(2)
    await put(registry, one, other)
    await promote(registry, one)
    running = await router()
    manifest, weights = spoil(other.manifest_json, other.weights)
    await store.client.hset(store.keys.model_versions, other.version, manifest)
    await store.client.delete(store.keys.model_weights(other.version))
    if weights is not None:
        await store.client.set(store.keys.model_weights(other.version), weights)
    running.models._follower._again_s = 0.0
    with caplog.at_level(logging.WARNING, logger="kvferry.models"):
        await promote(registry, other)
        await eventually(lambda: running.arms.running.roles.live == other.version)
        refusals = running.metric("kvferry_model_refused_total")
        for _ in range(3):  # it is tried again
            await running.models._follower._work()
    assert running.live == one.version
    assert not running.arms.running.complete
    (line,) = [r.getMessage() for r in caplog.records if "refused" in r.getMessage()]
    assert told in line
    assert f"{one.version} stays" in line
    assert refusals == running.metric("kvferry_model_refused_total") == 1.0
    (entry,) = [entry for entry in await registry.audit() if entry.command == "refused"]
    assert (entry.who, entry.version, entry.epoch) == ("router r1", other.version, 2)
    assert told in entry.reason
    assert (await running.models.describe())["refused"] == {other.version: entry.reason}
    await registry.add(other, "ann")  # which repairs it
    await eventually(lambda: running.live == other.version)
    assert running.arms.running.complete


async def test_a_store_that_goes_takes_no_model_along(
    router: Any, registry: Registry, valkey: EmbeddedValkey, artifact: Any, eventually: Any
) -> None:
    await put(registry, artifact(1), artifact(2))
    await promote(registry, artifact(1))
    running = await router()
    valkey.stop()
    await eventually(lambda: not running.health.up)
    assert running.live == artifact(1).version
    assert "store" in await running.models.describe()
    await valkey.start()  # with nothing in it
    await eventually(lambda: running.health.up)
    await running.models._follower._work()
    assert running.live == artifact(1).version
    again = await open_store(valkey.url)
    try:
        anew = Registry(again)
        await put(anew, artifact(2))
        await promote(anew, artifact(2))
        await eventually(lambda: running.live == artifact(2).version)
    finally:
        await again.close()


async def test_a_rollback_to_what_is_no_more_there_ends_without_a_model(
    router: Any, registry: Registry, store: Store, artifact: Any, eventually: Any
) -> None:
    await put(registry, artifact(1), artifact(2))
    await promote(registry, artifact(1))
    await promote(registry, artifact(2))
    running = await router()
    await store.client.hdel(store.keys.model_versions, artifact(1).version)
    for _ in range(5):
        running.models._watchdog.fault(artifact(2).version, "ValueError: none")
    await eventually(lambda: running.live == "structured")
    assert artifact(1).version in (await registry.audit())[-1].reason


async def test_a_store_that_refuses_is_told_of_once_and_is_not_lost(
    router: Any, store: Store, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await store.client.set(store.keys.model_roles, "no hash")
    with caplog.at_level(logging.ERROR, logger="kvferry.models"):
        running = await router()
        await eventually(lambda: "the store refuses" in caplog.text)
    assert running.health.up
    assert running.live == "structured"


async def test_routers_find_a_regression_in_their_sums_and_one_of_them_rolls_it_back(
    router: Any, registry: Registry, artifact: Any, eventually: Any
) -> None:
    await put(registry, artifact(1), artifact(2))
    await promote(registry, artifact(1))
    await promote(registry, artifact(2))
    routers = [await router(f"r{place}") for place in range(3)]
    for one in routers:  # each alone has seen too little
        one.arms.stretch.requests = {"live": 60, "safe": 12}
        one.arms.stretch.missed = {"live": 42, "safe": 1}
        one.arms.changed.add(one.arms.stretch)
    await eventually(lambda: all(one.live == artifact(1).version for one in routers))
    (entry,) = [entry for entry in await registry.audit() if entry.command == "rollback"]
    assert entry.who.startswith("router r")
    assert entry.reason.startswith(f"automatic: live {artifact(2).version} misses its objectives")
    done = [one.metric("kvferry_model_rollbacks_total", cause="regression") for one in routers]
    assert sorted(done) == [0.0, 0.0, 1.0]


async def test_a_verdict_on_roles_that_somebody_has_changed_meanwhile_is_dropped(
    store: Store, registry: Registry, artifact: Any
) -> None:
    """What was promoted anew answers for what it does from then on."""
    one, other = artifact(1), artifact(2)
    await put(registry, one, other)
    arms, health, metrics = Arms(0.1), Health("test"), ModelMetrics(CollectorRegistry())
    arms.run(Running(await promote(registry, one)))
    watchdog = Watchdog(registry, ArmCounts(store, "r#1"), arms, health, metrics, router="r")
    await promote(registry, other)
    again = await promote(registry, one)
    await watchdog._roll_back(Verdict(one.version, "as it was"), "regression")
    assert await registry.roles() == again
    # nor does it matter what roles are when a version cannot decide at all
    await watchdog._roll_back(Verdict(one.version, "it fails"), "faults")
    assert (await registry.roles()).live == other.version


async def test_a_version_that_fails_again_and_again_is_rolled_back(
    router: Any, registry: Registry, artifact: Any, eventually: Any
) -> None:
    await put(registry, artifact(1))
    await promote(registry, artifact(1))
    running = await router()
    for _ in range(5):
        running.models._watchdog.fault(artifact(1).version, "ZeroDivisionError: by zero")
    await eventually(lambda: running.live == "structured")
    assert running.metric("kvferry_model_faults_total", version=artifact(1).version) == 5.0
    reason = (await registry.audit())[-1].reason
    assert reason.startswith(f"automatic: {artifact(1).version} failed in 5 requests")
    assert reason.endswith("ZeroDivisionError: by zero")
