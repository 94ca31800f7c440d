"""`kvferry models health`: every router's learning, over a real store, loud where something is dead."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kvferry.integrations.log.record import Chosen, DecisionRecord, Outcome, Stages, Term, Terms
from kvferry.integrations.redis.connection import Store, open_store
from kvferry.integrations.redis.embedded import EmbeddedValkey
from kvferry.integrations.redis.health import Health
from kvferry.integrations.registry import health_metrics
from kvferry.integrations.registry.health_store import tell, told
from kvferry.integrations.registry.health_watch import AGAIN_S, CALM_S, HealthWatch, Learning
from kvferry.policy.features import FEATURES

STAGES = Stages(0.01, 0.02, 0.1, 0.03, None, 0.001, 0.005, 0.002, 1.0)
Call = Callable[..., tuple[int, str, str]]


def record(n: int, **outcome: Any) -> DecisionRecord:
    mode: Any = "split" if n % 2 else "colocated"
    usual: dict[str, Any] = {
        "ttft_s": 0.3 if n % 20 in (0, 5) else 0.1, "itl_s": 0.01, "output_tokens": 5, "prompt_tokens": 9,
        "cached_tokens": 0, "stages": STAGES, "moved_bytes": 9, "descriptors": 2,
    }  # fmt: skip
    return DecisionRecord(
        f"r{n}",
        0.0,
        Chosen("p", mode, "a", "b"),
        "queue_gain",
        terms=Terms(ttft_s=Term(0.1, 0.2), itl_s=Term(0.01, 0.02), transfer_s=Term(0.03, 0.05)),
        features=tuple(0.001 * n + 0.1 * place for place in range(len(FEATURES))),
        outcome=Outcome(**{**usual, **outcome}),
    )


def learning(name: str, count: int = 100, clock: Any = lambda: 0.0, **outcome: Any) -> Learning:
    found = Learning(name, "kvferry", clock=clock, evidence=lambda: {"ttft": count, "transfer": count})
    feed(found, count, **outcome)
    return found


def feed(found: Learning, count: int, **outcome: Any) -> None:
    for n in range(count):
        found.decided()
        found.ended(record(n, **outcome))


def tell_all(url: str, *told: Learning, ttl_s: float = 60.0) -> None:
    async def work() -> None:
        store = await open_store(url)
        for one in told:
            await tell(store, one.look(), ttl_s)
        await store.close()

    asyncio.run(work())


def test_all_is_well(valkey: EmbeddedValkey, call: Call) -> None:
    tell_all(valkey.url, learning("r1"), learning("r2"))
    code, out, _ = call("health")
    assert code == 0
    assert "learning is OK (r1, r2; live: structured; 200 requests)" in out
    assert "BAD" not in out
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = call("health", "--json")
    told = json.loads(out)
    assert (code, told["state"], len(told["routers"])) == (0, "ok", 2)
    assert told["total"]["terms"]["ttft/split"]["samples"] == 100
    assert told["total"]["terms"]["ttft/colocated"]["covered"] == 90


def test_what_is_dead_is_loud_and_fails(valkey: EmbeddedValkey, call: Call) -> None:
    dead = learning("a-router-with-a-rather-long-name.example.org:30000", missing={"a": "unheard"})
    tell_all(valkey.url, learning("r1"), dead)
    code, out, _ = call("health")
    assert code == 1
    assert "learning is BAD" in out
    assert "telemetry was lost" in out
    assert "a-router-with" in out
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = call("health", "--json")
    told = json.loads(out)
    assert (code, told["state"]) == (1, "bad")
    assert told["findings"][0]["check"] == "telemetry"
    assert told["findings"][0]["routers"] == ["a-router-with-a-rather-long-name.example.org:30000"]
    assert told["findings"][0]["do"]


def test_without_a_router_there_is_nothing_to_tell(valkey: EmbeddedValkey, call: Call) -> None:
    code, out, err = call("health")
    assert (code, out) == (1, "")
    assert "no router has told" in err
    tell_all(valkey.url, learning("r1"), ttl_s=0.001)
    assert call("health")[0] == 1


def test_a_store_that_does_not_answer_is_one_line(
    valkey: EmbeddedValkey, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = call("health", "--redis", "redis://127.0.0.1:1")
    assert (code, len(err.splitlines())) == (1, 1)
    monkeypatch.delenv("KVFERRY_REDIS")
    assert call("health")[0] == 2


@pytest.mark.parametrize("data", [b"{", b"null", b"x" * 100_000, b'{"window":"many"}'])
async def test_garbage_hides_no_other_router(store: Store, data: bytes) -> None:
    await tell(store, learning("good").look(), 60.0)
    await store.client.set(store.keys.learning("bad"), data)
    await store.client.sadd(store.keys.learning_routers, "bad", "gone")
    complaints = list[str]()
    found = await told(store, lambda router, what: complaints.append(router))
    assert [one.router for one in found] == ["good"]
    assert complaints == ["bad"]
    assert await store.client.smembers(store.keys.learning_routers) == {b"good", b"bad"}


def test_the_log_says_once_when_something_dies_and_when_it_lives_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    found = learning("r1", clock=lambda: now[0], missing={"a": "unheard"})
    for _ in range(5):
        found.look()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "telemetry was lost" in caplog.text
    now[0] += AGAIN_S
    found.look()
    assert len(caplog.records) == 2
    feed(found, 1000)
    found.look()
    assert len(caplog.records) == 2
    now[0] += CALM_S
    found.look()
    found.look()
    assert "telemetry is no longer bad" in caplog.records[2].getMessage()
    assert len(caplog.records) == 3


async def test_a_router_tells_and_goes_on_without_the_store(
    store: Store, valkey: EmbeddedValkey, eventually: Any
) -> None:
    found, health = learning("r1"), Health("x")
    watch = HealthWatch(store, found, health, interval_s=0.02)
    watch.start()

    async def heard() -> bool:
        return [one.ended for one in await told(store, print)] == [found.snapshot.ended]

    await eventually(heard)
    valkey.stop()
    await eventually(lambda: not health.up)
    feed(found, 7)
    await eventually(lambda: found.snapshot.ended == 107)  # still judged
    await valkey.start()
    await eventually(lambda: health.up)
    await eventually(heard)
    await watch.close()


def test_metrics_tell_the_same() -> None:
    registry, found = CollectorRegistry(), learning("r1", missing={"a": "unheard"})
    health_metrics.watch(registry, found)
    assert b"kvferry_learning_state" in generate_latest(registry)  # before the first look
    found.look()
    text = generate_latest(registry).decode()
    for line in (
        'kvferry_learning_samples{mode="split",term="ttft"} 50.0',
        'kvferry_learning_coverage{mode="colocated",term="ttft"} 0.9',
        'kvferry_learning_evidence{model="transfer"} 100.0',
        'kvferry_learning_share{of="rescued"} 0.0',
        'kvferry_learning_input_arrived{input="ttft_s"} 1.0',
        'kvferry_learning_feature_constant{feature="split"} 0.0',
        'kvferry_learning_state{check="telemetry"} 2.0',
    ):
        assert line in text


def test_a_snapshot_is_small() -> None:
    assert len(msgspec.json.encode(learning("r1", 1500).look())) < 16_000
