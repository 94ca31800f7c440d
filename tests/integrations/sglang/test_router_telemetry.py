"""The router in front of workers with and without the plugin, whose records a real Valkey carries."""

import asyncio
import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.integrations.log.codec import read_record
from kvferry.integrations.sglang import fleet as fleet_module
from kvferry.integrations.sglang.plugin import wire
from kvferry.integrations.sglang.plugin.wire import RequestRecord, Transfer

TEXT = {"text": "hello " * 20}


@pytest.fixture
def pair_of(fake: Any, worker: Any) -> Any:
    """await pair_of(decode_tells=True): a prefill worker with the plugin, a decode worker with it or not."""

    async def make(*, decode_tells: bool = True) -> Any:
        rooms = fake.Rooms()
        pre = await worker("prefill", rooms, internal_states=fake.states("prefill", "ip"))
        told = {"internal_states": fake.states("decode", "id")} if decode_tells else {}
        return SimpleNamespace(pre=pre, dec=await worker("decode", rooms, **told))

    return make


def of_prefill(room: int, instance: str = "ip", **told: Any) -> RequestRecord:
    stages = wire.Stages(bootstrap_s=0.001, queue_s=0.002, prefill_s=0.003, transfer_s=0.004)
    moved = Transfer("mooncake", 4096, 8, chunks=1, calls=1, busy_s=0.001)
    return RequestRecord(instance, "prefill", "r", room, stages=stages, transfer=moved, **told)


def of_decode(room: int, **told: Any) -> RequestRecord:
    return RequestRecord("id", "decode", "r", room, stages=wire.Stages(queue_s=0.001, decode_s=0.01), **told)


def room_of(worker: Any) -> int:
    room: int = worker.seen[-1].json["bootstrap_room"]
    return room


def logged(tmp_path: Path) -> list[Any]:
    """The log file's records."""
    lines = (line for file in tmp_path.rglob("decisions*.jsonl") for line in file.read_bytes().splitlines())
    return [read_record(line) for line in lines if b'"kvferry.decision.v1"' in line]


async def test_the_client_is_answered_before_and_the_log_written_after_the_records(
    pair_of: Any, route: Any, tell: Any, eventually: Any, tmp_path: Path
) -> None:
    pair = await pair_of()
    router = await route(pair.pre, pair.dec)
    watched = router.ferry.recent.watch()
    answer = await router.post(body=TEXT)
    assert answer.status == 200
    shown = router.record(answer.headers)
    assert shown.outcome.status == "ok"
    assert shown.outcome.moved_bytes is None
    assert router.ferry.join.held == 1
    assert router.idle()
    await tell(of_prefill(room_of(pair.pre)), of_decode(room_of(pair.pre)))
    await eventually(lambda: router.record(answer.headers).outcome.moved_bytes == 4096)
    await eventually(lambda: logged(tmp_path))
    (record,) = logged(tmp_path)
    assert record == router.record(answer.headers)
    assert record.outcome.stages.bootstrap_s == 0.001
    assert record.outcome.stages.decode_s == 0.01
    assert record.outcome.missing == {}
    assert record.outcome.e2e_s == shown.outcome.e2e_s
    assert watched.get_nowait() == record
    assert watched.empty()
    text = (await router.get("/metrics")).raw.decode()
    assert 'kvferry_outcome_telemetry_total{result="joined"} 1.0' in text


async def test_stages_span_from_door_to_door_on_one_host(
    pair_of: Any, route: Any, tell: Any, eventually: Any, fake: Any
) -> None:
    pair = await pair_of()
    router = await route(pair.pre, pair.dec)
    pair.dec.act = fake.Act(delay_s=0.2)
    answer = await router.post(body=TEXT)
    ended_s = time.time() - 0.01
    began_s = ended_s - 0.15
    stages = wire.Stages(bootstrap_s=0.02, queue_s=0.01, prefill_s=0.03, transfer_s=0.01)
    rest = wire.Stages(bootstrap_s=0.01, alloc_s=0.005, transfer_s=0.055, queue_s=0.01, decode_s=0.07)
    room = room_of(pair.pre)
    await tell(
        RequestRecord("ip", "prefill", "r", room, received_s=began_s, stages=stages, transfer=Transfer()),
        RequestRecord("id", "decode", "r", room, received_s=began_s, ended_s=ended_s, stages=rest),
    )
    await eventually(lambda: router.record(answer.headers).outcome.stages.egress_s is not None)
    outcome = router.record(answer.headers).outcome
    found = {name: getattr(outcome.stages, name) for name in outcome.stages.__struct_fields__}
    assert found["alloc_s"] == pytest.approx(0.005)
    assert found["transfer_s"] == pytest.approx(0.01, abs=1e-5)
    assert sum(value or 0.0 for value in found.values()) == pytest.approx(outcome.e2e_s, rel=0.05)


async def test_a_worker_without_the_plugin_does_what_it_can(
    pair_of: Any, route: Any, tell: Any, eventually: Any, caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    pair = await pair_of(decode_tells=False)
    router = await route(pair.pre, pair.dec)
    answer = await router.post(body=TEXT)
    await tell(of_prefill(room_of(pair.pre)))
    await eventually(lambda: router.record(answer.headers).outcome.missing)
    outcome = router.record(answer.headers).outcome
    assert outcome.missing == {pair.dec.url: "no_plugin"}
    assert outcome.moved_bytes == 4096
    assert outcome.stages.decode_s is None
    rows = {row["id"]: row for row in json.loads((await router.get("/kvferry/workers")).raw)["workers"]}
    assert rows[pair.pre.url]["unknown"] == []
    assert rows[pair.pre.url]["plugin"]["version"] == "1.2"
    assert rows[pair.dec.url]["plugin"]["telemetry"] == "no_plugin"
    assert "wait for KV room" in rows[pair.dec.url]["unknown"]
    assert caplog.text.count(f"{pair.dec.url}: no kvferry plugin; not known: wait for KV room") == 1
    assert f"{pair.pre.url}: kvferry plugin 1.2: telemetry on" in caplog.text


async def test_without_any_plugin_the_outcome_is_written_at_once(
    worker: Any, route: Any, eventually: Any, tmp_path: Path
) -> None:
    router = await route(await worker())
    answer = await router.post(body=TEXT)
    assert router.ferry.join.held == 0
    await eventually(lambda: logged(tmp_path))
    assert router.record(answer.headers).outcome.missing == {
        router.record(answer.headers).chosen.prefill: "no_plugin"
    }


async def test_a_batch_is_joined_by_the_rooms_of_its_sequences(
    pair_of: Any, route: Any, tell: Any, eventually: Any
) -> None:
    pair = await pair_of()
    router = await route(pair.pre, pair.dec)
    answer = await router.post(body={"text": ["a", "b", "c"]})
    assert answer.status == 200
    rooms = range(room_of(pair.pre), room_of(pair.pre) + 3)
    await tell(*map(of_prefill, rooms), *map(of_decode, rooms))
    await eventually(lambda: router.record(answer.headers).outcome.moved_bytes == 3 * 4096)


async def test_only_the_attempt_that_served_is_joined(
    fake: Any, worker: Any, route: Any, tell: Any, eventually: Any
) -> None:
    rooms = fake.Rooms()
    pres = [
        await worker(
            "prefill", rooms, disaggregation_bootstrap_port=7000 + n,
            internal_states=fake.states("prefill", f"i{n}"),
        )
        for n in range(2)
    ]  # fmt: skip
    dec = await worker("decode", rooms, internal_states=fake.states("decode", "id"))
    router = await route(*pres, dec)
    answer = await router.post(body=TEXT)
    while not router.record(answer.headers).outcome.rescued_from:
        liked = router.record(answer.headers).chosen.prefill
        for one in pres:
            one.act = fake.Act(status=500 if one.url == liked else 200)
        router.ferry.fleet.breakers._trips.clear()
        answer = await router.post(body=TEXT)
    assert answer.status == 200
    failed, served = (seen.json["bootstrap_room"] for seen in dec.seen[-2:])
    await tell(of_decode(failed, retractions=7), of_prefill(failed, "i0", cached_tokens=9))
    await tell(of_decode(served, retractions=1), of_prefill(served, "i1", cached_tokens=5))
    await eventually(lambda: router.record(answer.headers).outcome.moved_bytes)
    outcome = router.record(answer.headers).outcome
    assert (outcome.retractions, outcome.cached_tokens) == (1, 5)


@pytest.mark.parametrize("rid", [None, "mine"])
async def test_a_colocated_request_is_joined_by_its_id(
    rid: str | None, fake: Any, worker: Any, route: Any, tell: Any, eventually: Any
) -> None:
    one = await worker(internal_states=fake.states("colocated", "ic"))
    router = await route(one)
    answer = await router.post(body={**TEXT, **({"rid": rid} if rid else {})})
    known = one.seen[-1].json["rid"]
    assert rid is None or known == rid
    stages = wire.Stages(queue_s=0.25, prefill_s=0.5, decode_s=0.75)
    await tell(RequestRecord("ic", "colocated", known, stages=stages))
    await eventually(lambda: router.record(answer.headers).outcome.stages.decode_s == 0.75)
    assert router.record(answer.headers).outcome.missing == {}


async def test_a_store_that_is_away_costs_a_moment_and_no_outcome(
    pair_of: Any, route: Any, eventually: Any, tmp_path: Path
) -> None:
    pair = await pair_of()
    router = await route(pair.pre, pair.dec, redis=f"unix://{tmp_path}/nobody")
    router.ferry.join.hold_s = 0.05
    answer = await router.post(body=TEXT)
    assert answer.status == 200
    await eventually(lambda: logged(tmp_path))
    (record,) = logged(tmp_path)
    assert record.outcome.status == "ok"
    assert record.outcome.missing == dict.fromkeys((pair.pre.url, pair.dec.url), "no_record")


async def test_a_plugin_that_writes_to_another_store_is_not_waited_for(
    pair_of: Any, route: Any, monkeypatch: Any
) -> None:
    pair = await pair_of()
    router = await route(pair.pre, pair.dec)
    monkeypatch.setattr(fleet_module, "UNHEARD_AFTER_S", -1.0)
    answer = await router.post(body=TEXT)
    assert router.ferry.join.held == 0
    assert set(router.record(answer.headers).outcome.missing.values()) == {"unheard"}


async def test_the_end_of_the_router_writes_what_it_holds_back(
    fake: Any, pair_of: Any, store_url: str, tmp_path: Path, monkeypatch: Any, eventually: Any
) -> None:
    import aiohttp

    from kvferry.integrations.sglang.poller import Target
    from kvferry.integrations.sglang.serving import running
    from kvferry.integrations.sglang.settings import Settings

    monkeypatch.setenv("KVFERRY_STATE_DIR", str(tmp_path / "state"))
    pair = await pair_of()
    targets = (Target(pair.pre.url), Target(pair.dec.url))
    settings = Settings(targets=targets, port=0, redis=store_url, name="ends")
    async with running(settings) as (ferry, url), aiohttp.ClientSession() as session:
        await eventually(lambda: len(ferry.fleet.members) == 2)
        async with session.post(url + "/generate", json=TEXT) as answer:
            assert answer.status == 200
        assert ferry.join.held == 1
    (record,) = logged(tmp_path)
    assert record.outcome.status == "ok"
    assert set(record.outcome.missing.values()) == {"no_record"}


async def test_a_client_that_is_refused_is_not_waited_for(
    fake: Any, worker: Any, route: Any, eventually: Any
) -> None:
    one = await worker(internal_states=fake.states("colocated", "ic"))
    router = await route(one)
    one.act = fake.Act(status=400)
    answer = await router.post(body=TEXT)
    assert answer.status == 400
    assert router.ferry.join.held == 0
    assert router.record(answer.headers).outcome.status == "rejected"


async def test_many_requests_at_once_are_each_joined_with_their_own(
    pair_of: Any, route: Any, tell: Any, eventually: Any
) -> None:
    pair = await pair_of()
    router = await route(pair.pre, pair.dec)
    answers = await asyncio.gather(*(router.post(body={"text": f"{n}"}) for n in range(30)))
    rooms = {seen.json["rid"]: seen.json["bootstrap_room"] for seen in pair.pre.seen}
    numbers = {rid: place for place, rid in enumerate(rooms)}
    for rid, room in rooms.items():
        await tell(of_decode(room), of_prefill(room, cached_tokens=numbers[rid]))
    for answer in answers:
        own = answer.headers["x-kvferry-id"]
        await eventually(
            lambda own=own, answer=answer: (
                router.record(answer.headers).outcome.cached_tokens == numbers[own]
                and router.record(answer.headers).outcome.moved_bytes
            )
        )
    assert router.ferry.join.held == 0


async def test_a_request_that_a_decode_worker_runs_alone_is_joined_by_its_id(
    fake: Any, worker: Any, route: Any, tell: Any, eventually: Any
) -> None:
    told = fake.states("decode", "id", local_prefill={"on": True})
    one = await worker("decode", internal_states=told)
    router = await route(one)
    one.act = fake.Act(body=b'{"text": "x", "output_ids": [1], "meta_info": {}}', alone=True)
    one.role = "colocated"  # as to whether it answers without a bootstrap room
    answer = await router.post(body=TEXT)
    assert answer.status == 200
    assert answer.plan == f"colocated:{one.url}"
    assert router.record(answer.headers).chosen.on_decode
    stages = wire.Stages(queue_s=0.25, prefill_s=0.5, decode_s=0.75)
    await tell(RequestRecord("id", "local", one.seen[-1].json["rid"], first_token_s=0.75, stages=stages))
    await eventually(lambda: router.record(answer.headers).outcome.stages.decode_s == 0.75)
    outcome = router.record(answer.headers).outcome
    assert outcome.found == {"local": {}}
    assert outcome.ttft_s == pytest.approx(0.75, abs=0.3)
    assert outcome.missing == {}
