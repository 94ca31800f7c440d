"""A worker dies or hangs under load: nobody who has not got a first byte notices, and it comes back."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.worker import LocalWorker

AT_ONCE = 16
OUTPUT_TOKENS = 48
# Half of the requests are long enough to be still in prefill when the worker is lost.
LENGTHS = tuple(300 if number % 2 else 2500 for number in range(AT_ONCE))
LONGEST_S = 120.0  # far above every deadline of these requests, far below request_timeout_secs


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw of one request."""

    number: int
    status: int
    output: list[int] | None
    first_byte: bool
    done: bool
    error: Any
    request_id: str
    took_s: float


def body_of(ids: list[int], stream: bool, tokens: int = OUTPUT_TOKENS) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return {"input_ids": ids, "stream": stream, "sampling_params": sampling}


async def ask(session: Any, url: str, number: int, ids: list[int], first: asyncio.Event) -> Seen:
    """One request; the even ones of each length are streamed. `first` is set by any first byte."""
    stream, begun = number // 2 % 2 == 0, time.monotonic()
    async with session.post(url + "/generate", json=body_of(ids, stream)) as answer:
        raw = b""
        async for chunk in answer.content.iter_any():
            raw += chunk
            first.set()
        status, request_id = answer.status, answer.headers.get("x-kvferry-id", "")
    took_s = time.monotonic() - begun
    if not stream or status != 200:
        told = json.loads(raw)
        output = told["output_ids"] if status == 200 else None
        return Seen(number, status, output, False, status == 200, told.get("error"), request_id, took_s)
    lines = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    done = lines[-1] == b"[DONE]"
    parts = [json.loads(line) for line in lines if line != b"[DONE]"]
    error = next((part["error"] for part in parts if "error" in part), None)
    outputs = [part["output_ids"] for part in parts if "output_ids" in part]
    return Seen(number, status, outputs[-1], True, done, error, request_id, took_s)


def lose(worker: LocalWorker, how: str) -> None:
    """`group`: as a crash of the machine; `main`: SGLang's server alone; `hang`: all of it stops."""
    if how == "group":
        os.killpg(worker.pid, signal.SIGKILL)
    elif how == "main":
        os.kill(worker.pid, signal.SIGKILL)
    else:
        os.killpg(worker.pid, signal.SIGSTOP)


@contextlib.asynccontextmanager
async def back(victim: LocalWorker, how: str) -> AsyncIterator[None]:
    """The session's workers are whole again afterwards, whatever happens."""
    try:
        yield
    finally:
        if how == "hang":
            os.killpg(victim.pid, signal.SIGCONT)
        else:
            await asyncio.to_thread(victim.restart)


@pytest.mark.parametrize(
    ("role", "transport", "how"),
    [
        ("prefill", "mooncake", "group"),
        ("prefill", "nixl", "main"),
        ("decode", "mooncake", "group"),
        ("decode", "nixl", "group"),
        ("prefill", "mooncake", "hang"),
    ],
)
@pytest.mark.timeout(420)
async def test_under_16_requests(
    cluster: LocalCluster,
    start_router: Any,
    watcher: Any,
    direct: Any,
    prompt_ids: Any,
    role: Any,
    transport: Any,
    how: str,
) -> None:
    (single,), (victim,) = cluster.of("colocated"), cluster.of(role, transport)
    pair = [*cluster.of("prefill", transport), *cluster.of("decode", transport)]
    prompts = [prompt_ids(length, seed=f"{role}{how}{number}") for number, length in enumerate(LENGTHS)]
    want = [await direct.colocated(single, ids, OUTPUT_TOKENS) for ids in prompts]
    router = await asyncio.to_thread(start_router, [*pair, single], "always_split")
    first = asyncio.Event()
    async with back(victim, how):
        asked = [
            asyncio.create_task(ask(direct.session, router.url, number, ids, first))
            for number, ids in enumerate(prompts)
        ]
        await first.wait()
        lose(victim, how)
        finished = sum(task.done() for task in asked)
        async with asyncio.timeout(LONGEST_S):
            seen = await asyncio.gather(*asked)
        left = [worker for worker in (*pair, single) if worker is not victim]
        await watcher.until_idle([router], left, within_s=40)
    assert finished < AT_ONCE // 2, "the worker was lost too late to matter"
    for one in seen:
        if one.done:
            assert one.output == want[one.number], f"request {one.number}: {one}"
            assert one.error is None
        else:
            assert one.first_byte, f"no first byte and no answer: {one}"
            assert one.error["type"] == "upstream_error", one
            assert one.output == want[one.number][: len(one.output)], "what came before was right"
    records = {record["id"]: record for record in router.records()}
    rescued = [record for record in records.values() if record["outcome"]["rescued_from"]]
    assert rescued, "the worker held requests without a first byte"
    for record in rescued:
        assert record["outcome"]["rescued_from"] == [record["chosen"]["plan"]]
        assert record["outcome"]["served_by"] == f"colocated:{single.url}"
    for one in seen:
        assert records[one.request_id]["outcome"]["status"] == ("ok" if one.done else "failed")
    assert await watcher.metric(router, "kvferry_rescues_total") == len(rescued)
    assert "Traceback" not in router.log
    broken = sum(not one.done for one in seen)
    print(
        f"{role} {transport} {how}: {len(rescued)} rescued, {broken} got an error event, "
        f"slowest {max(one.took_s for one in seen):.1f} s"
    )
    await returned(router, victim, direct, prompts[1], want[1])


async def returned(router: Any, victim: LocalWorker, direct: Any, ids: list[int], want: list[int]) -> None:
    """The pair takes requests again by itself."""
    plan, end = "", time.monotonic() + 90
    while not plan.startswith("split:"):
        assert time.monotonic() < end, f"{victim.name} does not come back: {router.log[-2000:]}"
        async with direct.session.post(router.url + "/generate", json=body_of(ids, False)) as answer:
            assert answer.status == 200, await answer.text()
            told, plan = json.loads(await answer.read()), answer.headers["x-kvferry-plan"]
        assert told["output_ids"] == want
        await asyncio.sleep(0.2)
    assert victim.url in plan


async def test_the_only_worker_hangs_and_comes_back(
    cluster: LocalCluster, start_router: Any, watcher: Any, direct: Any, prompt_ids: Any
) -> None:
    """Streams in the middle end with an error event, waiting requests with 502, new ones with 503."""
    (single,) = cluster.of("colocated")
    ids = prompt_ids(300, seed="only")
    want = await direct.colocated(single, ids, OUTPUT_TOKENS)
    router = await asyncio.to_thread(start_router, [single])
    first = asyncio.Event()
    long = body_of(prompt_ids(200, seed="long"), stream=True, tokens=4000)
    async with back(single, "hang"):
        async with direct.session.post(router.url + "/generate", json=long) as streamed:
            await streamed.content.readany()
            lose(single, "hang")
            waiting = asyncio.create_task(ask(direct.session, router.url, 2, ids, first))
            async with asyncio.timeout(LONGEST_S):
                rest = await streamed.read()
                failed = await waiting
        assert b"[DONE]" not in rest
        assert json.loads(rest.split(b"data: ")[-1])["error"]["type"] == "upstream_error"
        assert (failed.status, failed.error["type"]) == (502, "upstream_error")
        refused = await ask(direct.session, router.url, 2, ids, first)
        assert (refused.status, refused.error["type"]) == (503, "server_error")
    served = await eventually_served(direct.session, router.url, ids)
    assert served.output == want
    await watcher.until_idle([router], [single])
    assert "Traceback" not in router.log


async def eventually_served(session: Any, url: str, ids: list[int]) -> Seen:
    """Ask again until an answer comes."""
    end = time.monotonic() + 60
    while (seen := await ask(session, url, 2, ids, asyncio.Event())).status == 503:
        assert time.monotonic() < end, seen.error
        await asyncio.sleep(0.2)
    return seen
