"""What workers with the plugin send to the store, against what their clients saw and what was truly moved.

KVFERRY_TEST_OUTAGE_S: how long the store is away in mid-load (default 4).
"""

import asyncio
import contextlib
import importlib.util
import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.command import missing_requirement
from kvferry.integrations.sglang.local.model import TinyModel
from kvferry.integrations.sglang.local.spec import Transport, WorkerOptions, WorkerSpec
from kvferry.integrations.sglang.plugin.wire import (
    LoadRecord,
    RequestRecord,
    Stages,
    WorkerRecord,
    decode,
)

OUTAGE_S = float(os.environ.get("KVFERRY_TEST_OUTAGE_S", "4"))
QUEUE_RECORDS = 25
SHAPE = TinyModel()
BYTES_PER_TOKEN = SHAPE.layers * 2 * SHAPE.kv_heads * SHAPE.head_dim * 4  # float32


_spec = importlib.util.spec_from_file_location("tellingpair", Path(__file__).parent / "tellingpair.py")
assert _spec is not None
assert _spec.loader is not None
tellingpair: Any = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = tellingpair  # tests are no package: a helper beside them is loaded by its path
_spec.loader.exec_module(tellingpair)
Pair, Store = tellingpair.Pair, tellingpair.Store


@pytest.fixture(
    scope="module",
    params=[("mooncake", 1, False, False), ("nixl", 16, True, True)],
    ids=["mooncake", "nixl-pages-overlap-retraction"],
)
def workers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalCluster, Store, Transport, int, bool]]:
    transport, page_size, overlap, retracts = request.param
    specs = [WorkerSpec("prefill", transport), WorkerSpec("decode", transport)]
    if not retracts:
        specs.append(WorkerSpec("colocated"))
    missing = missing_requirement(specs)
    if missing:
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("telemetry")
    config = folder / "worker.toml"
    config.write_text(f"[telemetry]\nqueue_records = {QUEUE_RECORDS}\nload_interval_s = 0.5\n")
    store = Store()
    store.start()
    env = {"KVFERRY_REDIS": store.url, "KVFERRY_WORKER_CONFIG": str(config)}
    if retracts:
        env |= {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "8"}
    options = WorkerOptions(page_size=page_size, overlap=overlap, env=tuple(env.items()))
    try:
        with LocalCluster(specs, options, log_dir=folder, timeout_s=280) as cluster:
            yield cluster, store, transport, page_size, retracts
    finally:
        store.close()


@pytest.fixture
async def pair(workers: tuple[LocalCluster, Store, Transport, int, bool]) -> AsyncIterator[Pair]:
    cluster, store, *rest = workers
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Pair(cluster, store, session, *rest)


async def eventually(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.1)
    return value


async def both(store: Store, rid: str) -> tuple[RequestRecord, RequestRecord]:
    found = await eventually(
        lambda: store.requests() if {(rid, "prefill"), (rid, "decode")} <= store.requests().keys() else None
    )
    return found[rid, "prefill"], found[rid, "decode"]


def stages(record: RequestRecord) -> dict[str, float]:
    values = {name: getattr(record.stages, name) for name in Stages.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}


def adds_up(record: RequestRecord) -> bool:
    """The rule is 5%; by construction it is rounding, a microsecond for each stage."""
    return math.isclose(sum(stages(record).values()), record.wall_s, abs_tol=1e-5)


async def test_stages_are_the_time_that_the_client_waited(pair: Pair, prompt_ids: Any) -> None:
    await pair.split(prompt_ids(64), 4, "warm")
    shares = []
    for number in range(5):
        rid = f"timed-{number}"
        answers = await pair.split(prompt_ids(2500, number), 60, rid)
        for answer, record in zip(answers, await both(pair.store, rid), strict=True):
            assert adds_up(record)
            assert record.wall_s <= answer.seconds
            assert record.first_token_s is not None
            assert 0 < record.first_token_s <= record.wall_s
            shares.append(sum(stages(record).values()) / answer.seconds)
            meta = answer.body["meta_info"]
            assert record.prompt_tokens == meta["prompt_tokens"] == 2500
            assert record.output_tokens == meta["completion_tokens"]
            assert record.cached_tokens == meta["cached_tokens"]
            assert record.finish == "length"
    prefill, decoded = await both(pair.store, "timed-0")
    assert set(stages(prefill)) == {
        f"{name}_s" for name in ["prepare", "bootstrap", "alloc", "queue", "prefill", "transfer"]
    }
    assert set(stages(decoded)) - {"requeue_s"} == {
        f"{name}_s" for name in ["prepare", "bootstrap", "alloc", "transfer", "queue", "decode"]
    }
    assert prefill.room == decoded.room
    assert prefill.room
    # the transfer that decode sees holds the prefill worker's forward pass
    assert (decoded.stages.transfer_s or 0) > (prefill.stages.prefill_s or 0)
    assert statistics.median(shares) > 0.95, shares


async def test_many_at_once_add_up_too(pair: Pair, prompt_ids: Any) -> None:
    lengths = [16, 900, 33, 2000, 128, 600, 1500, 50]
    rids = [f"many-{number}" for number in range(len(lengths))]
    await asyncio.gather(
        *(pair.split(prompt_ids(n, 7), 20, rid) for n, rid in zip(lengths, rids, strict=True))
    )
    for rid in rids:
        assert all(adds_up(record) for record in await both(pair.store, rid))
    waited = [record.at_enqueue for record in pair.store.requests().values()]
    assert any(queues.inflight or queues.bootstrap or queues.transfer or queues.running for queues in waited)
    decoded = [record for record in pair.store.requests().values() if record.role == "decode"]
    for record in decoded:
        assert (record.stages.requeue_s is not None) == (record.retractions > 0)
    assert any(record.retractions for record in decoded) == pair.retracts


@pytest.mark.parametrize("tokens", [1, 17, 160, 1000, 4500])
async def test_bytes_are_exact(pair: Pair, prompt_ids: Any, tokens: int) -> None:
    for time_ in ("cold", "cached"):  # on the prefill worker; the decode worker keeps nothing
        rid = f"bytes-{tokens}-{time_}"
        await pair.split(prompt_ids(tokens, 99), 2, rid)
        record, decoded = await both(pair.store, rid)
        moved = record.transfer
        assert moved is not None
        pages = math.ceil(tokens / pair.page_size)
        assert moved.bytes == pages * pair.page_size * BYTES_PER_TOKEN
        assert moved.transport == pair.transport
        assert moved.chunks == moved.calls
        assert moved.chunks >= (2 if tokens > 4096 and time_ == "cold" else 1)  # the chunked prefill size
        lists = 2 * SHAPE.layers
        if pair.transport == "nixl":
            assert moved.descriptors == lists * pages  # never merged
        else:
            assert moved.descriptors % lists == 0
        assert 0 < moved.busy_s <= moved.span_s
        assert moved.aux_bytes > 0
        assert decoded.transfer is None
        assert adds_up(record)


async def test_colocated(pair: Pair, prompt_ids: Any) -> None:
    alone = pair.cluster.of("colocated")
    if not alone:
        pytest.skip("no colocated worker here")
    shares = []
    for number in range(3):
        rid = f"alone-{number}"
        body = pair.body(prompt_ids(2500, 50 + number), 60, rid)
        body = {name: value for name, value in body.items() if not name.startswith("bootstrap")}
        answer = await pair.leg(alone[0], body)
        await eventually(lambda rid=rid: (rid, "colocated") in pair.store.requests())
        record = pair.store.requests()[rid, "colocated"]
        assert set(stages(record)) == {"prepare_s", "queue_s", "prefill_s", "decode_s"}
        assert adds_up(record)
        assert record.wall_s <= answer.seconds
        shares.append(record.wall_s / answer.seconds)
    assert statistics.median(shares) > 0.95, shares


async def test_half_a_pair_that_is_aborted_has_the_stages_it_came_to(pair: Pair, prompt_ids: Any) -> None:
    for worker, role in ((pair.prefill, "prefill"), (pair.decode, "decode")):
        rid = f"half-{role}"
        task = asyncio.create_task(pair.leg(worker, pair.body(prompt_ids(300), 20, rid)))
        await asyncio.sleep(0.7)
        await pair.abort(rid, worker)
        with contextlib.suppress(AssertionError):  # SGLang's answer to an aborted one may be an error
            await task
        await eventually(lambda rid=rid, role=role: (rid, role) in pair.store.requests())
        record = pair.store.requests()[rid, role]
        assert record.finish in ("abort", "error")
        assert adds_up(record)
        assert record.stages.bootstrap_s is not None
        assert record.stages.prefill_s is None
        assert record.stages.decode_s is None
        assert record.first_token_s is None


async def test_a_decode_that_is_aborted(pair: Pair, prompt_ids: Any) -> None:
    rid = "stopped"
    legs = asyncio.create_task(pair.split(prompt_ids(100), 3000, rid))
    await eventually(lambda: (rid, "prefill") in pair.store.requests())
    await asyncio.sleep(0.5)
    await pair.abort(rid, pair.decode)
    await asyncio.wait([legs])
    legs.exception()
    await eventually(lambda: (rid, "decode") in pair.store.requests())
    record = pair.store.requests()[rid, "decode"]
    assert record.finish == "abort"
    assert adds_up(record)
    assert (record.stages.decode_s or 0) > 0
    assert 0 < record.output_tokens < 3000


async def test_only_real_requests_are_recorded(pair: Pair) -> None:
    async with pair.session.get(pair.prefill.url + "/health_generate") as answer:
        assert answer.status == 200
    await asyncio.sleep(1.0)
    # SGLang warms prefill and decode workers up with requests of its own; all of ours carry an id
    known = ("warm", "timed-", "many-", "bytes-", "half-", "stopped", "load-", "after-")
    for rid, role in pair.store.requests():
        assert role == "colocated" or rid.startswith(known), rid


async def test_load_and_layout(pair: Pair, prompt_ids: Any) -> None:
    running = [pair.split(prompt_ids(800, n), 60, f"load-{n}") for n in range(3)]
    await asyncio.gather(*running)
    for worker, role in ((pair.prefill, "prefill"), (pair.decode, "decode")):
        told = await pair.plugin(worker)
        assert told["features"]["telemetry"]["on"] is True
        instance = told["instance"]
        await eventually(
            lambda instance=instance: (
                sum(isinstance(r, LoadRecord) and r.worker == instance for r in pair.store.records()) >= 4
            )
        )
        records = [r for r in pair.store.records() if r.worker == instance]
        loads = [r for r in records if isinstance(r, LoadRecord)]
        assert all(a.time_s < b.time_s for a, b in itertools.pairwise(loads))
        assert all(r.load["max_total_num_tokens"] == 16384 for r in loads if r.load)
        assert any(r.taken_s for r in loads)
        assert loads[-1].requests >= 3
        assert loads[-1].hook_us > 0
        layout = next(r for r in records if isinstance(r, WorkerRecord))
        port = pair.prefill.bootstrap_port if role == "prefill" else None
        assert layout.transports == {pair.transport: port}
        assert layout.url == worker.url
        assert (layout.role, layout.dtype, layout.page_size) == (role, "float32", pair.page_size)
        assert (layout.layers, layout.kv_heads) == (SHAPE.layers, SHAPE.kv_heads)
        assert (layout.head_dim, layout.v_head_dim) == (SHAPE.head_dim, SHAPE.head_dim)
        assert (layout.tp, layout.pp, layout.dp) == (1, 1, 1)
        assert layout.bytes_per_token == BYTES_PER_TOKEN
        assert layout.max_total_tokens == 16384
        assert layout.model == worker.options.model_name
        kept = pair.store.told(instance)
        assert kept is not None
        stored = decode(kept)
        assert isinstance(stored, WorkerRecord)
        assert msgspec.structs.replace(stored, time_s=layout.time_s) == layout


async def test_the_store_goes_in_mid_load_and_comes_back(pair: Pair, prompt_ids: Any) -> None:
    """No request notices; what had no room is counted; records flow again, the layout first."""
    before = {w.name: (await pair.plugin(w))["features"]["telemetry"] for w in (pair.prefill, pair.decode)}
    stop = asyncio.Event()
    served = 0

    async def client(number: int) -> None:
        nonlocal served
        turn = 0
        while not stop.is_set():
            length = 16 + (37 * number + 11 * turn) % 100
            prefill, decoded = await pair.split(prompt_ids(length, turn), 2, f"load-{number}-{turn}")
            assert len(decoded.body["output_ids"]) == 2
            assert prefill.body["meta_info"]["prompt_tokens"] == length
            served, turn = served + 1, turn + 1

    clients = [asyncio.create_task(client(number)) for number in range(4)]

    try:
        await asyncio.sleep(1.0)
        pair.store.kill()
        gone_at, enough = served, time.monotonic() + OUTAGE_S
        while time.monotonic() < enough or served - gone_at <= 2 * QUEUE_RECORDS:
            await asyncio.sleep(0.2)
            assert not any(task.done() for task in clients)
        during = {
            w.name: (await pair.plugin(w))["features"]["telemetry"] for w in (pair.prefill, pair.decode)
        }
        served_away = served - gone_at
        pair.store.start()
        back_at = served
        await eventually(lambda: served - back_at >= 10)
    finally:
        stop.set()
        await asyncio.gather(*clients)
    for name, telemetry in during.items():
        assert telemetry["on"] is True
        assert telemetry["store_up"] is False, name
        assert telemetry["queued"] <= QUEUE_RECORDS
        dropped = telemetry["dropped"] - before[name]["dropped"]
        assert dropped > 0
        assert dropped >= served_away - 2 * QUEUE_RECORDS
    await pair.split(prompt_ids(40), 2, "after-outage")
    prefill, decoded = await both(pair.store, "after-outage")
    records = pair.store.records()
    assert {prefill.worker, decoded.worker} <= {r.worker for r in records if isinstance(r, WorkerRecord)}
    assert isinstance(records[0], WorkerRecord)
    for worker in (pair.prefill, pair.decode):
        log = worker.log_path.read_text()
        assert log.count("telemetry: store") == 2  # one line when it went, one when it was back
        assert "Traceback" not in log
    print(f"{served_away} requests while the store was away; dropped {during}")
