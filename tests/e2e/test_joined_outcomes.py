"""A prefill worker with the plugin, one decode worker with it and one without, behind one router: both pairs
are used, and every outcome tells what its workers can tell."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvferry.integrations.log.codec import read_record
from kvferry.integrations.log.record import DecisionRecord, Outcome
from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.model import TinyModel
from kvferry.integrations.sglang.local.spec import WorkerOptions, WorkerSpec
from kvferry.integrations.sglang.local.worker import LocalWorker

REQUESTS = 24
IN_FLIGHT = 4
OUTPUT_TOKENS = 12
SHAPE = TinyModel()
BYTES_PER_TOKEN = SHAPE.layers * 2 * SHAPE.kv_heads * SHAPE.head_dim * 4
OF_PREFILL = ("ingress_s", "bootstrap_s", "queue_s", "prefill_s", "transfer_s")
OF_DECODE = ("alloc_s", "decode_queue_s", "decode_s", "egress_s")
OFF_BY = 0.05  # what the stages may miss of the wall clock


@pytest.fixture(scope="module")
def telling(store_url: str, log_dir: Path) -> Iterator[LocalCluster]:
    """A prefill and a decode worker whose plugins write to the routers' store."""
    specs = (WorkerSpec("prefill", "mooncake"), WorkerSpec("decode", "mooncake"))
    options = WorkerOptions(env=(("KVFERRY_REDIS", store_url), ("KVFERRY_TELEMETRY", "1")))
    with LocalCluster(specs, options, log_dir=log_dir / "telling", timeout_s=280) as running:
        yield running


@pytest.fixture(scope="module")
def silent(log_dir: Path) -> Iterator[LocalWorker]:
    """A decode worker without the plugin."""
    options = WorkerOptions(env=(("SGLANG_PLUGINS", "kvferry_cpu"),))
    specs = (WorkerSpec("decode", "mooncake"),)
    with LocalCluster(specs, options, log_dir=log_dir / "silent", timeout_s=280) as running:
        yield running.workers[0]


def stages_of(outcome: Outcome) -> dict[str, float]:
    """Those that are known."""
    named = ((name, getattr(outcome.stages, name)) for name in outcome.stages.__struct_fields__)
    return {name: value for name, value in named if value is not None}


def explained(router: Any, request_id: str) -> str:
    """What `kvferry logs explain` prints, in one line."""
    words = ["logs", "explain", request_id, "--from", *map(str, router.folder.glob("*.jsonl"))]
    command = [sys.executable, "-m", "kvferry.integrations.cli.app", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


async def logged(router: Any, count: int) -> list[DecisionRecord]:
    """The request log, once all are in it."""
    for _ in range(300):
        if len(router.records()) >= count:
            break
        await asyncio.sleep(0.1)
    return [read_record(json.dumps(one)) for one in router.records()]


@pytest.mark.timeout(600)
async def test_each_worker_tells_what_it_can(
    telling: LocalCluster, silent: LocalWorker, start_router: Any, direct: Any, watcher: Any, prompt_ids: Any
) -> None:
    (prefill,), (decode,) = telling.of("prefill"), telling.of("decode")
    router = start_router([prefill, decode, silent], "random_by_workers")
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def ask(number: int) -> None:
        ids = prompt_ids(16 + 40 * number, seed=number)
        sampling = {"temperature": 0, "max_new_tokens": OUTPUT_TOKENS, "ignore_eos": True}
        body = {"input_ids": ids, "stream": number % 2 == 0, "sampling_params": sampling}
        async with gate, direct.session.post(router.url + "/generate", json=body) as answer:
            await answer.read()
            assert answer.status == 200

    await asyncio.gather(*map(ask, range(REQUESTS)))
    records = await logged(router, REQUESTS)
    assert len(records) == REQUESTS
    by_decode: dict[str, list[DecisionRecord]] = {decode.url: [], silent.url: []}
    for record in records:
        assert record.outcome is not None
        assert record.outcome.status == "ok", record.outcome.error
        by_decode[record.chosen.decode].append(record)
    assert min(map(len, by_decode.values())) >= 3

    off = []
    for record in by_decode[decode.url]:
        outcome = record.outcome
        assert outcome is not None
        assert outcome.missing == {}
        stages = stages_of(outcome)
        assert not {*OF_PREFILL, *OF_DECODE} - set(stages)
        assert min(stages.values()) >= 0.0
        assert outcome.e2e_s is not None
        off.append(abs(sum(stages.values()) / outcome.e2e_s - 1.0))
        assert outcome.retractions == 0
    print(f"stages against the wall clock: worst {max(off):.2%} off")
    assert max(off) < OFF_BY

    for record in by_decode[silent.url]:
        outcome = record.outcome
        assert outcome is not None
        assert outcome.missing == {silent.url: "no_plugin"}
        stages = stages_of(outcome)
        assert set(OF_PREFILL) <= set(stages)
        assert not set(OF_DECODE) & set(stages)
        assert outcome.ttft_s is not None
        assert sum(stages.values()) <= outcome.ttft_s * (1.0 + OFF_BY)
        assert outcome.retractions is None

    for record in records:
        outcome = record.outcome
        assert outcome is not None
        assert outcome.moved_bytes == BYTES_PER_TOKEN * record.request.prompt_tokens
        assert outcome.descriptors
        assert outcome.moved is not None
        assert outcome.moved.transport == "mooncake"
        assert outcome.moved.busy_s > 0.0
        assert outcome.cached_tokens is not None

    one, other = (by_decode[url][0].id for url in (decode.url, silent.url))
    assert "predicted p50 / p90 measured" in explained(router, one)
    assert f"no plugin on {silent.url}: alloc, decode queue, decode not known" in explained(router, other)

    rows = {row["id"]: row for row in (await watcher.get(router.url + "/kvferry/workers"))["workers"]}
    assert rows[silent.url]["plugin"] == {"version": "", "features": {}, "telemetry": "no_plugin"}
    assert "wait for KV room" in rows[silent.url]["unknown"]
    for worker in (prefill, decode):
        assert rows[worker.url]["plugin"]["telemetry"] == "heard"
        assert rows[worker.url]["plugin"]["features"]["telemetry"]["on"]
        assert rows[worker.url]["unknown"] == []
    assert f"{silent.url}: no kvferry plugin" in router.log
    assert await watcher.metric(router, "kvferry_outcome_telemetry_total") == REQUESTS
    assert 'kvferry_outcome_telemetry_total{result="joined"} ' + f"{float(REQUESTS)}" in await text_of(
        watcher, router
    )


async def text_of(watcher: Any, router: Any) -> str:
    """Everything that Prometheus would see."""
    async with watcher.session.get(router.url + "/metrics") as answer:
        text: str = await answer.text()
    return text
