"""What the router tells about itself, and what it writes down."""

import asyncio
import json
import socket
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.redis.leases import LeaseEntry, Leases
from kvferry.integrations.redis.streams import Streams

TEXT = {"text": "hello secret-prompt", "sampling_params": {"max_new_tokens": 4}}


def samples(raw: bytes) -> dict[Any, float]:
    found = {}
    for family in text_string_to_metric_families(raw.decode()):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def total(metrics: dict[Any, float], name: str, **labels: str) -> float:
    wanted = set(labels.items())
    return sum(value for (key, given), value in metrics.items() if key == name and wanted <= set(given))


async def test_health_ready_and_models(pair: Any, route: Any) -> None:
    workers = await pair()
    router = await route(*workers.all)
    assert json.loads((await router.get("/health")).raw) == {"status": "ok", "store": "up"}
    ready = json.loads((await router.get("/ready")).raw)
    assert ready == {"status": "ready", "plans": {"Qwen3-8B": 2}}
    models = json.loads((await router.get("/v1/models")).raw)
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == ["Qwen3-8B"]
    for one in workers.all:
        router.ferry.fleet.drop(one.url, "gone")
    assert (await router.get("/ready")).status == 503


async def test_metrics_can_be_read_and_count_right(pair: Any, route: Any, fake: Any) -> None:
    workers = await pair()
    router = await route(*workers.all, policy="always_split")
    for _ in range(3):
        await router.post(body={**TEXT, "stream": True})
    workers.dec[0].acts.append(fake.Act(status=500))
    workers.pre[0].acts.append(fake.Act(alone=True))
    assert (await router.post(body=TEXT)).plan.startswith("colocated")
    workers.dec[0].acts.append(fake.Act(status=400))
    workers.pre[0].acts.append(fake.Act(alone=True))
    assert (await router.post(body=TEXT)).status == 400
    metrics = samples((await router.get("/metrics")).raw)
    assert total(metrics, "kvferry_requests_total", mode="split", status="ok") == 3
    assert total(metrics, "kvferry_requests_total", mode="colocated", status="ok") == 1
    assert total(metrics, "kvferry_requests_total", mode="split", status="rejected") == 1
    assert total(metrics, "kvferry_requests_total") == 5
    assert total(metrics, "kvferry_rescues_total", mode="split") == 1
    assert total(metrics, "kvferry_decide_seconds_count") == 6
    assert total(metrics, "kvferry_ttft_seconds_count", mode="split") == 3
    assert total(metrics, "kvferry_worker_up") == 3
    assert total(metrics, "kvferry_in_flight") == 0
    assert total(metrics, "kvferry_leases") == 0
    assert total(metrics, "kvferry_store_up") == 1


async def test_explain_tells_a_request_by_the_beginning_of_its_id(pair: Any, route: Any) -> None:
    workers = await pair()
    router = await route(*workers.all)
    answer = await router.post(body=TEXT)
    given = answer.headers["x-kvferry-id"]
    told = await router.get(f"/kvferry/explain/{given[:8]}")
    record = json.loads(told.raw)
    assert record["id"] == given
    assert record["schema"] == "kvferry.decision.v1"
    assert record["outcome"]["status"] == "ok"
    assert record["chosen"]["plan"] == answer.plan
    assert b"secret-prompt" not in told.raw
    missing = await router.get("/kvferry/explain/ffffffffffff")
    assert missing.status == 404
    assert "logs explain" in json.loads(missing.raw)["error"]["message"]


async def test_decisions_are_told_as_they_come_and_the_watcher_may_leave(
    pair: Any, route: Any, eventually: Any
) -> None:
    workers = await pair()
    router = await route(*workers.all)
    async with router.session.get(router.url + "/kvferry/decisions") as stream:
        await eventually(lambda: len(router.ferry.recent._watchers) == 1)
        answer = await router.post(body=TEXT)
        async with asyncio.timeout(5):
            line = await stream.content.readline()
        assert json.loads(line.removeprefix(b"data: "))["id"] == answer.headers["x-kvferry-id"]
        for _ in range(300):
            router.ferry.recent.add(router.record(answer.headers))
    await eventually(lambda: not router.ferry.recent._watchers)


async def test_links_are_told_with_their_moves(pair: Any, route: Any, fake: Any, eventually: Any) -> None:
    workers = await pair()
    router = await route(*workers.all, policy="always_split")
    workers.pre[0].act = fake.Act(delay_s=0.3)
    posting = asyncio.create_task(router.post(body=TEXT))
    await eventually(lambda: workers.dec[0].running == 1)
    (link,) = json.loads((await router.get("/kvferry/links")).raw)["links"]
    assert (link["transport"], link["moves_in_flight"]) == ("mooncake", 1)
    await posting
    (link,) = json.loads((await router.get("/kvferry/links")).raw)["links"]
    assert link["moves_in_flight"] == 0
    assert link["slowness"] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("redis", ["embedded", "given"])
async def test_decisions_and_outcomes_reach_the_store_and_the_file(
    pair: Any, route: Any, eventually: Any, tmp_path: Any, store_url: str, redis: str
) -> None:
    workers = await pair()
    url = {"redis": None} if redis == "embedded" else {}
    router = await route(*workers.all, log_file=tmp_path / "log.jsonl", **url)
    ids = [(await router.post(body=TEXT)).headers["x-kvferry-id"] for _ in range(5)]
    sink = router.ferry.sink
    await eventually(lambda: sink.delivered >= 10 and sink.queued == 0, "delivered")
    await eventually(lambda: sink.log_written >= 5, "written")
    written = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    lines = [line for line in written if line["schema"] == "kvferry.decision.v1"]
    assert [line["id"] for line in lines] == ids
    assert all(line["outcome"]["status"] == "ok" for line in lines)
    assert "secret-prompt" not in (tmp_path / "log.jsonl").read_text()
    if redis == "given":
        store = await open_store(store_url)
        for kind in ("decision", "outcome"):
            seen = [entry.id async for _, entry in Streams(store).read(kind)]
            assert seen[-5:] == ids
        await store.close()


async def test_routing_goes_on_without_a_store(pair: Any, route: Any, eventually: Any, tmp_path: Any) -> None:
    workers = await pair()
    router = await route(*workers.all, redis=f"unix://{tmp_path}/nobody")
    for _ in range(3):
        assert (await router.post(body=TEXT)).status == 200
    await eventually(lambda: not router.ferry.sink.up)
    assert json.loads((await router.get("/health")).raw)["store"] == "down"
    await eventually(lambda: router.ferry.sink.spooled >= 6)


async def test_other_routers_work_counts_while_they_hold_it(
    worker: Any, route: Any, eventually: Any, store_url: str
) -> None:
    one = await worker()
    router = await route(one)
    store = await open_store(store_url)
    await Leases(store, "another").acquire("x", [LeaseEntry(one.url, 5000, 1, 6000)], 60.0)
    fleet = router.ferry.fleet
    await eventually(lambda: one.url in fleet.others())
    assert fleet.cluster("Qwen3-8B").state.own_prefill_tokens.sum() == 5000.0
    await Leases(store, "another").release("x")
    await eventually(lambda: one.url not in fleet.others())
    await store.close()


async def test_it_listens_on_ipv6_too(worker: Any, route: Any) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 on this machine")
    router = await route(await worker(), host="::1")
    assert router.url.startswith("http://[::1]:")
    assert (await router.get("/health")).status == 200


async def test_a_second_port_serves_the_metrics(worker: Any, route: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    router = await route(await worker(), prometheus_port=port)
    async with router.session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"kvferry_worker_up" in await answer.read()


async def test_cached_tokens_teach_what_a_worker_holds(worker: Any, route: Any, fake: Any) -> None:
    one, two = await worker(), await worker()
    router = await route(one, two)
    prompt = {"input_ids": list(range(2000)), "sampling_params": {"max_new_tokens": 1}}
    first = await router.post(body=prompt)
    sent_to = one if one.seen else two
    sent_to.act = fake.Act(cached_tokens=1984)
    again = await router.post(body=prompt)
    assert again.plan == first.plan
    record = router.record(again.headers)
    assert record.request.cached_tokens == 31 * 64
    assert record.outcome.cached_tokens == 1984
    member = router.ferry.fleet.members[sent_to.url]
    limit = member.prefixes._limit
    sent_to.act = fake.Act(cached_tokens=0)
    await router.post(body=prompt)
    assert member.prefixes._limit < limit


async def test_bytes_learn_how_many_tokens_they_are(worker: Any, route: Any) -> None:
    one = await worker()
    router = await route(one)
    before = router.ferry.ratio.per_byte("Qwen3-8B", "/v1/chat/completions")
    await router.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 5000}]})
    assert router.ferry.ratio.per_byte("Qwen3-8B", "/v1/chat/completions") < before
    samples_before = router.ferry.ratio.per_byte("Qwen3-8B", "/generate")
    await router.post(body={"text": "abcd" * 100, "sampling_params": {"n": 3}})
    assert router.ferry.ratio.per_byte("Qwen3-8B", "/generate") == samples_before
