"""Halves of split requests on simulated workers: how they meet, and how they fail."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from simulatedworkers import cluster_spec, events, idle, post, wanted

from kvferry.integrations.sglang.body import Endpoint
from kvferry.integrations.sglang.simulated.asked import asked
from kvferry.integrations.sglang.simulated.cluster import SimulatedCluster
from kvferry.integrations.sglang.simulated.flight import Inbox
from kvferry.integrations.sglang.simulated.options import SimulationOptions

GOLDEN = json.loads((Path(__file__).parent / "golden" / "generate_answers.json").read_text())
UNSAID = {"weight_versions", "storage_prefetch_wait", "storage_staging_wait", "api_server_dispatch_finish_ts"}
CALM = SimulationOptions(time_scale=10.0)
HASTY = SimulationOptions(time_scale=30.0, half_pair_timeout_s=9.0)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


def ends(cluster: SimulatedCluster, at: int = 0) -> Any:
    berth = cluster.berths[at]
    return SimpleNamespace(berth=berth, url=f"{berth.url}/generate", worker=cluster.workers[berth.id])


@asynccontextmanager
async def started(kind: str, options: SimulationOptions) -> AsyncIterator[Any]:
    """A prefill and a decode worker of one cluster, or of two that know nothing of each other."""
    if kind == "one process":
        async with SimulatedCluster(cluster_spec(p=1, d=1), options) as both:
            yield SimpleNamespace(pre=ends(both), dec=ends(both, 1))
        return
    async with (
        SimulatedCluster(cluster_spec(p=1), options) as one,
        SimulatedCluster(cluster_spec(d=1), options) as other,
    ):
        yield SimpleNamespace(pre=ends(one), dec=ends(other))


@pytest.fixture(params=["one process", "two processes"])
async def pair(request: Any) -> AsyncIterator[Any]:
    async with started(request.param, CALM) as both:
        yield both


@pytest.fixture(params=["one process", "two processes"])
async def hasty(request: Any) -> AsyncIterator[Any]:
    """A pair whose halves do not wait long for each other."""
    async with started(request.param, HASTY) as both:
        yield both


def halves(pair: Any, room: Any, tokens: int = 6, **more: Any) -> dict[str, Any]:
    address = {"bootstrap_host": "127.0.0.1", "bootstrap_port": pair.pre.berth.bootstrap_port}
    return {**wanted(tokens), **address, "bootstrap_room": room, **more}


async def emptied(pair: Any) -> None:
    """Nothing is left in either worker: no request, no KV, no room."""
    for end in (pair.pre, pair.dec):
        await idle(end.worker)
        for _ in range(200):
            if not end.worker.engine.kv.used_tokens:
                break
            await asyncio.sleep(0.01)
        assert end.worker.engine.kv.used_tokens == 0
        assert not end.worker.rooms.waiting


async def test_the_prefill_worker_says_one_token_and_the_decode_worker_all(
    session: aiohttp.ClientSession, pair: Any
) -> None:
    for cached in (0, 256):
        body = halves(pair, 7)
        (_, first), (_, whole) = await asyncio.gather(
            post(session, pair.pre.url, body), post(session, pair.dec.url, body)
        )
        assert first["meta_info"]["completion_tokens"] == 1
        assert whole["meta_info"]["completion_tokens"] == 6
        for role, answer in (("prefill", first), ("decode", whole)):
            assert GOLDEN[role]["meta_info"].keys() - UNSAID <= answer["meta_info"].keys()
        assert whole["text"].startswith(first["text"])
        for meta in (first["meta_info"], whole["meta_info"]):
            assert (meta["prompt_tokens"], meta["cached_tokens"]) == (300, cached)
        assert first["meta_info"]["request_finished_ts"] >= first["meta_info"]["prefill_finished_time"]
    await emptied(pair)


async def test_halves_may_come_apart_and_the_waiting_one_is_counted(
    session: aiohttp.ClientSession, pair: Any
) -> None:
    for room, (early, late) in enumerate(((pair.pre, pair.dec), (pair.dec, pair.pre))):
        body = halves(pair, room)
        waiting = asyncio.create_task(post(session, early.url, body))
        await asyncio.sleep(0.1)
        loads = await (await session.get(f"{early.berth.url}/v1/loads")).json()
        disagg = loads["loads"][0]["disaggregation"]
        queue = "prefill_bootstrap_queue_reqs" if early is pair.pre else "decode_transfer_queue_reqs"
        assert disagg[queue] == loads["loads"][0]["num_waiting_reqs"] == 1
        assert not waiting.done()
        answers = await asyncio.gather(post(session, late.url, body), waiting)
        assert [status for status, _ in answers] == [200, 200]
    await emptied(pair)


async def test_a_batch_uses_one_room_each(session: aiohttp.ClientSession, pair: Any) -> None:
    body = {**halves(pair, 100), "input_ids": [[1] * 200, [2] * 100]}
    (_, first), (_, whole) = await asyncio.gather(
        post(session, pair.pre.url, body), post(session, pair.dec.url, body)
    )
    assert [one["meta_info"]["prompt_tokens"] for one in whole] == [200, 100]
    assert [one["meta_info"]["completion_tokens"] for one in first] == [1, 1]
    await emptied(pair)


async def test_both_halves_stream(session: aiohttp.ClientSession, pair: Any) -> None:
    body = halves(pair, 5, tokens=40)
    first, whole = await asyncio.gather(
        events(session, pair.pre.url, body), events(session, pair.dec.url, body)
    )
    assert [one["meta_info"]["completion_tokens"] for one in first] == [1]
    assert whole[-1]["meta_info"]["completion_tokens"] == 40


async def test_half_a_pair_times_out_as_in_sglang(session: aiohttp.ClientSession, hasty: Any) -> None:
    pair = hasty
    for end, state in ((pair.pre, "Bootstrapping"), (pair.dec, "WaitingForInput")):
        status, answer = await post(session, end.url, halves(pair, 1))
        assert status == 500
        assert "KVTransferError" in answer["message"]
        assert f"KVPoll.{state}" in answer["message"]
    (told,) = await events(session, pair.dec.url, halves(pair, 2))
    assert told["meta_info"]["finish_reason"]["status_code"] == 500
    await emptied(pair)


async def test_the_other_half_fails_when_one_is_aborted(session: aiohttp.ClientSession, pair: Any) -> None:
    for room, (victim, other) in enumerate(((pair.pre, pair.dec), (pair.dec, pair.pre))):
        body = halves(pair, room, rid=f"room-{room}")
        body["input_ids"] = [room] * 100_000  # long enough to be in the middle of its prefill
        both = [asyncio.create_task(post(session, end.url, body)) for end in (victim, other)]
        await asyncio.sleep(0.05)
        await post(session, f"{victim.berth.url}/abort_request", {"rid": f"room-{room}"})
        (mine, aborted), (theirs, failed) = await asyncio.gather(*both)
        assert (mine, aborted["meta_info"]["finish_reason"]["type"]) == (200, "abort")
        assert theirs == 500
        assert "KVTransferError" in failed["message"]
    await emptied(pair)


async def test_a_room_is_taken_once(session: aiohttp.ClientSession, pair: Any) -> None:
    waiting = asyncio.create_task(post(session, pair.dec.url, halves(pair, 9)))
    await asyncio.sleep(0.05)
    status, answer = await post(session, pair.dec.url, halves(pair, 9))
    assert status == 500
    assert "KVTransferError" in answer["message"]
    assert (await post(session, pair.pre.url, halves(pair, 9)))[0] == 200
    assert (await waiting)[0] == 200
    await emptied(pair)


async def test_without_a_prefill_worker_decode_fails(session: aiohttp.ClientSession, pair: Any) -> None:
    body = {**halves(pair, 3), "bootstrap_port": 1}
    status, answer = await post(session, pair.dec.url, body)
    assert status == 500
    assert "KVTransferError" in answer["message"]


async def test_an_ordinary_request_gets_a_400_but_on_a_colocated_worker(
    session: aiohttp.ClientSession,
) -> None:
    async with SimulatedCluster(cluster_spec(p=1, d=1, l=1, c=1), CALM) as cluster:
        mark = {"do_local_prefill": True}
        for place, (plain, marked) in enumerate(((400, 400), (400, 400), (400, 200), (200, 200))):
            url = ends(cluster, place).url
            status, answer = await post(session, url, wanted(2))
            assert status == plain
            if status == 400:
                assert "without bootstrap room id" in answer["error"]["message"]
            assert (await post(session, url, wanted(2, **mark)))[0] == marked
        pair = SimpleNamespace(pre=ends(cluster), dec=ends(cluster, 2))
        both = [post(session, end.url, halves(pair, 1)) for end in (pair.pre, pair.dec)]
        assert [status for status, _ in await asyncio.gather(*both)] == [200, 200], "it does splits too"


async def test_the_built_in_fake_needs_no_partner(session: aiohttp.ClientSession, pair: Any) -> None:
    body = {**halves(pair, 0), "bootstrap_host": "2.2.2.2"}
    assert (await post(session, pair.pre.url, body))[1]["meta_info"]["completion_tokens"] == 1
    assert (await post(session, pair.dec.url, body))[1]["meta_info"]["completion_tokens"] == 6
    await emptied(pair)


async def test_the_bootstrap_server_answers(session: aiohttp.ClientSession, pair: Any) -> None:
    url = f"http://127.0.0.1:{pair.pre.berth.bootstrap_port}"
    assert (await session.get(f"{url}/health")).status == 200
    told = await (await session.get(f"{url}/route")).json()
    assert (told["attn_tp_size"], told["page_size"]) == (2, 1)
    assert (await session.post(f"{url}/kvferry/room", data=b"no")).status == 400


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_comes_and_goes_every_request_ends_once(
    session: aiohttp.ClientSession, hasty: Any, seed: int
) -> None:
    pair = hasty
    rng = random.Random(seed)
    ended: list[int] = []

    async def one(room: int) -> None:
        body = halves(pair, room, tokens=rng.randint(1, 200), rid=f"r{room}", stream=rng.random() < 0.5)
        body["input_ids"] = [rng.randrange(3)] * rng.choice((1, 500, 5000))
        await asyncio.sleep(rng.random() * 0.5)
        sent = [end.url for end in rng.sample((pair.pre, pair.dec), rng.choice((1, 2, 2, 2)))]
        both = [asyncio.create_task(session.post(url, json=body)) for url in sent]
        fate = rng.random()
        await asyncio.sleep(rng.random() * 0.1)
        if fate < 0.2:
            await session.post(
                f"{rng.choice((pair.pre, pair.dec)).berth.url}/abort_request", json={"rid": f"r{room}"}
            )
        if fate > 0.8:
            rng.choice(both).cancel()
        for answer in await asyncio.gather(*both, return_exceptions=True):
            if not isinstance(answer, BaseException):
                await answer.read()
                ended.append(answer.status)

    await asyncio.gather(*(one(room) for room in range(40)))
    assert set(ended) <= {200, 500}
    assert 200 in ended
    await emptied(pair)


@pytest.mark.parametrize("victim", [0, 1, None])
async def test_a_half_can_be_dropped_at_any_event(victim: int | None) -> None:
    """Driven event by event: real time stands still."""
    still = SimulationOptions(time_scale=1e-9)
    async with SimulatedCluster(cluster_spec(p=1, d=1, c=1), still) as cluster:
        pre, dec, col = (ends(cluster, place) for place in range(3))
        parts = (col,) if victim is None else (pre, dec)
        pump = pre.worker.pump
        for events_before in range(40):
            body = halves(
                SimpleNamespace(pre=pre), events_before, tokens=2, stream=True, rid=str(events_before)
            )
            body["input_ids"] = [events_before] * 5000  # three chunks
            told = asked(Endpoint.GENERATE, json.dumps(body).encode(), "m", still)
            flights = []
            for part in parts:
                flights += part.worker.take(told, Inbox())
            for _ in range(events_before):
                pump.events.run(pump.events.next_s)
            part = parts[victim or 0]
            part.worker.drop([flights[victim or 0]])
            pump.events.run(pump.events.now_s + 5.0)
            assert all(flight.ended for flight in flights)
            for part in parts:
                assert not part.worker.busy
                assert part.worker.engine.kv.used_tokens == 0
        whole = [flight.failure is None and flight.tokens == 2 for flight in flights]
        assert any(whole), "the last ones had ended before they were dropped"
