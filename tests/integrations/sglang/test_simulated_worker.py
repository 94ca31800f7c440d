"""One simulated worker, asked as SGLang is."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from simulatedworkers import cluster_spec, events, idle, post, wanted

from kvferry.integrations.sglang.describe import worker_of
from kvferry.integrations.sglang.simulated.cluster import SimulatedCluster
from kvferry.integrations.sglang.simulated.options import SimulationOptions
from kvferry.models.loads import load_of
from kvferry.policy.worker import Role

FAST = 30.0
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
async def colocated(session: aiohttp.ClientSession) -> AsyncIterator[Any]:
    options = SimulationOptions(time_scale=FAST, stream_interval=3, output_median=40.0)
    async with SimulatedCluster(cluster_spec(c=1), options) as cluster:
        yield SimpleNamespace(
            cluster=cluster, url=cluster.berths[0].url, worker=next(iter(cluster.workers.values()))
        )


async def test_an_answer_has_the_tokens_that_were_asked_for(
    session: aiohttp.ClientSession, colocated: Any
) -> None:
    status, answer = await post(session, f"{colocated.url}/generate", wanted(7, rid="mine"))
    meta = answer["meta_info"]
    assert status == 200
    assert len(answer["output_ids"]) == len(answer["text"].split()) == 7
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 7}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (300, 7, 0)
    assert meta["request_received_ts"] <= meta["forward_entry_time"] < meta["prefill_finished_time"]
    assert meta["queue_time"] >= 0.0
    assert 0.0 < meta["first_token_latency"] < meta["e2e_latency"]


async def test_a_prompt_seen_before_is_cached_until_the_cache_is_flushed(
    session: aiohttp.ClientSession, colocated: Any
) -> None:
    url = f"{colocated.url}/generate"

    async def cached() -> int:
        return int((await post(session, url, wanted(2)))[1]["meta_info"]["cached_tokens"])

    assert await cached() == 0
    assert await cached() == 256, "full blocks of 64"
    running = asyncio.create_task(post(session, url, wanted(30_000)))
    await asyncio.sleep(0.05)
    assert (await session.post(f"{colocated.url}/flush_cache")).status == 400, "requests are in flight"
    running.cancel()
    await idle(colocated.worker)
    assert (await session.post(f"{colocated.url}/flush_cache")).status == 200
    assert await cached() == 0


async def test_a_stream_grows_by_the_interval(session: aiohttp.ClientSession, colocated: Any) -> None:
    seen = await events(session, f"{colocated.url}/generate", wanted(600))
    counts = [event["meta_info"]["completion_tokens"] for event in seen]
    assert counts[-1] == 600
    assert len(counts) > 1
    assert all(after - before >= 3 for before, after in pairwise(counts[:-1]))
    assert [len(event["output_ids"]) for event in seen] == counts
    assert all(event["meta_info"]["finish_reason"] is None for event in seen[:-1])
    assert seen[-1]["meta_info"]["finish_reason"]["type"] == "length"
    _, whole = await post(session, f"{colocated.url}/generate", wanted(600))
    assert seen[-1]["text"] == whole["text"]


async def test_a_batch_is_answered_in_order_and_streams_interleaved(
    session: aiohttp.ClientSession, colocated: Any
) -> None:
    body = {
        "text": ["one " * 40, "two " * 80],
        "rid": ["a", "b"],
        "sampling_params": {"max_new_tokens": 5, "ignore_eos": True},
    }
    _, answers = await post(session, f"{colocated.url}/generate", body)
    assert [one["meta_info"]["id"] for one in answers] == ["a", "b"]
    assert [one["meta_info"]["prompt_tokens"] for one in answers] == [40, 80]
    seen = await events(session, f"{colocated.url}/generate", body)
    ends = {one["index"]: one["meta_info"]["completion_tokens"] for one in seen}
    assert ends == {0: 5, 1: 5}


async def test_several_samples_of_one_prompt_are_a_list(
    session: aiohttp.ClientSession, colocated: Any
) -> None:
    body = {"text": "hello there", "sampling_params": {"max_new_tokens": 2, "ignore_eos": True, "n": 3}}
    _, answers = await post(session, f"{colocated.url}/generate", body)
    assert len(answers) == 3
    body = {"prompt": "hello there!", "max_tokens": 2, "ignore_eos": True, "n": 3}
    _, answer = await post(session, f"{colocated.url}/v1/completions", body)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 6)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/completions", {"prompt": "hello there"}, lambda choice: choice["text"]),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hello"}]},
            lambda choice: (choice.get("message") or choice.get("delta"))["content"],
        ),
    ],
)
async def test_openai_streams_say_what_whole_answers_do(
    session: aiohttp.ClientSession,
    colocated: Any,
    path: str,
    body: dict[str, Any],
    said: Callable[[dict[str, Any]], str],
) -> None:
    body = {**body, "max_tokens": 8, "ignore_eos": True}
    status, whole = await post(session, colocated.url + path, body)
    seen = await events(session, colocated.url + path, {**body, "stream_options": {"include_usage": True}})
    assert status == 200
    assert whole["usage"]["completion_tokens"] == 8
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert seen[-1]["choices"] == []
    assert seen[-1]["usage"] == whole["usage"]
    assert "".join(said(event["choices"][0]) for event in seen[:-1]) == said(whole["choices"][0])
    assert [event["choices"][0]["finish_reason"] for event in seen[:-1]][-1] == "length"
    assert "usage" not in (await events(session, colocated.url + path, body))[-1]


async def test_without_a_limit_the_length_is_drawn_and_stays_the_same(
    session: aiohttp.ClientSession, colocated: Any
) -> None:
    bodies = [
        {"text": f"prompt number {place}", "sampling_params": {"max_new_tokens": 3000}} for place in range(4)
    ]
    url = f"{colocated.url}/generate"
    first = [(await post(session, url, body))[1]["meta_info"] for body in bodies]
    again = [(await post(session, url, body))[1]["meta_info"] for body in bodies]
    lengths = [meta["completion_tokens"] for meta in first]
    assert lengths == [meta["completion_tokens"] for meta in again]
    assert len(set(lengths)) > 1
    assert {meta["finish_reason"]["type"] for meta in first} == {"stop"}, "none is cut off"


@pytest.mark.parametrize(
    "body",
    [
        {"text": ""},
        {},
        {"text": "a", "input_ids": [1]},
        {"input_ids": [1] * 200_000},
        {"text": ["a", "b"], "bootstrap_room": [1]},
    ],
)
async def test_bad_bodies_get_a_400(session: aiohttp.ClientSession, colocated: Any, body: Any) -> None:
    status, answer = await post(session, f"{colocated.url}/generate", body)
    assert status == 400
    assert answer["error"]["message"]


async def test_an_id_in_flight_is_not_taken_twice(session: aiohttp.ClientSession, colocated: Any) -> None:
    url = f"{colocated.url}/generate"
    running = asyncio.create_task(post(session, url, wanted(30_000, rid="twice")))
    await asyncio.sleep(0.05)
    assert (await post(session, url, wanted(1, rid="twice")))[0] == 400
    await post(session, f"{colocated.url}/abort_request", {"rid": "tw"})
    status, answer = await running
    assert status == 200
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert answer["meta_info"]["completion_tokens"] < 30_000


async def test_what_a_client_leaves_behind_is_aborted(session: aiohttp.ClientSession, colocated: Any) -> None:
    for stream in (False, True):
        task = asyncio.create_task(post(session, f"{colocated.url}/generate", wanted(30_000, stream=stream)))
        await asyncio.sleep(0.05)
        assert colocated.worker.busy
        task.cancel()
        await idle(colocated.worker)
    await asyncio.sleep(0.05)  # until the step that the engine was in has ended
    assert colocated.worker.engine.kv.used_tokens == 0


async def test_the_router_reads_it_as_a_worker(session: aiohttp.ClientSession) -> None:
    async with SimulatedCluster(cluster_spec(p=1, d=1, l=1, c=1)) as cluster:
        workers = {}
        for berth in cluster.berths:
            info = await (await session.get(f"{berth.url}/server_info")).json()
            loads = await (
                await session.get(f"{berth.url}/v1/loads?include=core,disagg,queues,memory")
            ).json()
            workers[berth.id] = worker_of(berth.url, info, loads)
            assert load_of(loads, 0.0).running_requests == 0
            real = json.loads((GOLDEN / f"{berth.role.value}_loads.json").read_text())
            assert real.keys() <= loads.keys()
            assert real["loads"][0].keys() <= loads["loads"][0].keys()
            for section in ("memory", "disaggregation", "queues"):
                assert real["loads"][0][section].keys() <= loads["loads"][0][section].keys()
            real = json.loads((GOLDEN / f"{berth.role.value}_server_info.json").read_text())
            assert real.keys() <= info.keys()
            assert (await session.get(f"{berth.url}/health")).status == 200
            assert (await (await session.get(f"{berth.url}/v1/models")).json())["data"][0]["id"] == info[
                "model_path"
            ]
            assert (await (await session.get(f"{berth.url}/model_info")).json())["is_generation"]
    assert {worker.role for worker in workers.values()} == set(Role)
    assert [worker.can_colocate for worker in workers.values()] == [False, False, True, True]
    assert workers["p0"].transports == workers["d0"].transports == ("mooncake",)
    assert workers["p0"].bootstrap_port == cluster.berths[0].bootstrap_port
    assert all(worker.layout.tp == 2 and worker.facts["gpu"] == "NVIDIA H200" for worker in workers.values())
    assert len({worker.shape for worker in workers.values()}) == 1


async def test_a_faster_time_looks_like_faster_workers(session: aiohttp.ClientSession) -> None:
    told = []
    for scale in (5.0, 50.0):
        async with SimulatedCluster(cluster_spec(c=1), SimulationOptions(time_scale=scale)) as cluster:
            url = cluster.berths[0].url
            await post(session, f"{url}/generate", wanted(20))
            told.append((await (await session.get(f"{url}/v1/loads")).json())["loads"][0])
    slow, fast = told
    assert slow["total_prefill_uncached_tokens"] == fast["total_prefill_uncached_tokens"] == 300
    assert slow["total_prefill_busy_us"] == pytest.approx(10 * fast["total_prefill_busy_us"])
    assert slow["decode_moments"][2] == pytest.approx(10 * fast["decode_moments"][2])
    assert slow["decode_moments"][1] == fast["decode_moments"][1] == 19
