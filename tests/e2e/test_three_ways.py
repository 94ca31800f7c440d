"""One prefill and one decode worker, both with the plugin: a mixed load runs split over Mooncake, split over
NIXL and colocated on the decode worker, and every answer is the one that a worker alone would give."""

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvferry.integrations.log.codec import read_record
from kvferry.integrations.log.record import DecisionRecord
from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.model import TinyModel
from kvferry.integrations.sglang.local.spec import WorkerOptions, WorkerSpec

REQUESTS = 200
IN_FLIGHT = 16
EACH_WAY_AT_LEAST = 30
OUTPUT_TOKENS = 16
SHAPE = TinyModel()
BYTES_PER_TOKEN = SHAPE.layers * 2 * SHAPE.kv_heads * SHAPE.head_dim * 4
SPLIT_STAGES = ("bootstrap_s", "alloc_s", "queue_s", "prefill_s", "transfer_s", "decode_s")
LOCAL_STAGES = ("queue_s", "prefill_s", "decode_s")


def prompts() -> list[list[int]]:
    """16 to 4,000 tokens, evenly spaced on a log scale and shuffled; no two begin alike."""
    draw = random.Random(5)
    lengths = [round(16 * 250 ** (step / (REQUESTS - 1))) for step in range(REQUESTS)]
    draw.shuffle(lengths)
    return [draw.choices(range(94), k=length) for length in lengths]


@pytest.fixture(scope="module")
def references() -> dict[int, list[int]]:
    """What the colocated worker answered, by place in `prompts()`; filled by the first run."""
    return {}


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "overlap"])
def pair(request: pytest.FixtureRequest, store_url: str, log_dir: Path) -> Iterator[LocalCluster]:
    """A prefill and a decode worker, in either of SGLang's event loops."""
    features = ("TELEMETRY", "DUAL_TRANSPORT", "LOCAL_PREFILL")
    env = (("KVFERRY_REDIS", store_url), *((f"KVFERRY_{name}", "1") for name in features))
    specs = (WorkerSpec("prefill", "mooncake"), WorkerSpec("decode", "mooncake"))
    folder = log_dir / f"three-ways-{'overlap' if request.param else 'plain'}"
    options = WorkerOptions(overlap=request.param, env=env)
    with LocalCluster(specs, options, log_dir=folder, timeout_s=280) as running:
        yield running


async def generate(session: Any, url: str, ids: list[int], stream: bool) -> tuple[str, list[int]]:
    """(plan, output ids) of one request at temperature 0."""
    sampling = {"temperature": 0, "max_new_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    body = {"input_ids": ids, "stream": stream, "sampling_params": sampling}
    async with session.post(url + "/generate", json=body) as answer:
        raw = await answer.read()
        assert answer.status == 200, raw[:300]
        plan = answer.headers["x-kvferry-plan"]
    if stream:
        *events, last = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
        assert last == b"[DONE]"
        raw = events[-1]
    return plan, json.loads(raw)["output_ids"]


async def records_of(router: Any, count: int) -> list[DecisionRecord]:
    """The request log, once all are in it: an outcome waits for the workers' records."""
    for _ in range(100):
        found = router.records()
        if len(found) >= count:
            return [read_record(json.dumps(one)) for one in found]
        await asyncio.sleep(0.1)
    raise AssertionError(f"{len(router.records())} of {count} requests logged")


@pytest.mark.timeout(900)
async def test_200_requests_in_three_ways(
    cluster: LocalCluster,
    pair: LocalCluster,
    start_router: Any,
    direct: Any,
    watcher: Any,
    references: dict[int, list[int]],
) -> None:
    router = start_router(pair.workers, "random_by_workers", KVFERRY_MAX_ATTEMPTS="1")
    asked, gate = prompts(), asyncio.Semaphore(IN_FLIGHT)

    async def through(place: int) -> tuple[str, list[int]]:
        async with gate:
            return await generate(direct.session, router.url, asked[place], stream=place % 2 == 0)

    answers = await asyncio.gather(*map(through, range(REQUESTS)))
    (alone,) = cluster.of("colocated")
    for place, ids in enumerate(asked):
        if place not in references:
            references[place] = await direct.colocated(alone, ids, OUTPUT_TOKENS)
    wrong = [
        (plan, len(asked[place]))
        for place, (plan, output) in enumerate(answers)
        if output != references[place]
    ]
    assert not wrong, f"{len(wrong)} of {REQUESTS} differ: {wrong[:10]}"

    await watcher.until_idle([router], pair.workers)
    records = await records_of(router, REQUESTS)
    ways = Counter(record.chosen.transport or "colocated on decode" for record in records)
    print(f"{REQUESTS} requests: {dict(ways)}")
    assert len(ways) == 3
    assert min(ways.values()) >= EACH_WAY_AT_LEAST, ways
    for record in records:
        assert record.outcome is not None
        assert (record.outcome.status, record.outcome.rescued_from) == ("ok", ())
        check_stages(record)
    off = sorted(stage_error(record) for record in records)
    print(f"stages against the wall clock: median {off[len(off) // 2]:.1%}, worst {off[-1]:.1%} off")
    assert off[len(off) // 2] < 0.05
    for transport in ("mooncake", "nixl", None):
        one = next(record for record in records if record.chosen.transport == transport)
        shown = explained(router, one.id)
        assert "measured" in shown, shown
        assert "prefill" in shown, shown


def check_stages(record: DecisionRecord) -> None:
    """Every stage of its way was measured, and every byte counted."""
    outcome = record.outcome
    assert outcome is not None
    split = record.chosen.transport is not None
    names = SPLIT_STAGES if split else LOCAL_STAGES
    missing = [name for name in names if getattr(outcome.stages, name) is None]
    assert not missing, f"{record.chosen.plan}: no {', '.join(missing)}"
    if split:
        assert outcome.moved_bytes == BYTES_PER_TOKEN * record.request.prompt_tokens
        assert outcome.descriptors


def stage_error(record: DecisionRecord) -> float:
    """How far the sum of the stages is from the request's time in the router, as a part of it."""
    outcome = record.outcome
    assert outcome is not None
    assert outcome.e2e_s
    stages = outcome.stages
    total = sum(getattr(stages, name) or 0.0 for name in stages.__struct_fields__)
    return abs(total / outcome.e2e_s - 1.0)


def explained(router: Any, request_id: str) -> str:
    """What `kvferry logs explain` prints."""
    words = ["logs", "explain", request_id, "--from", *map(str, router.folder.glob("*.jsonl"))]
    command = [sys.executable, "-m", "kvferry.integrations.cli.app", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
