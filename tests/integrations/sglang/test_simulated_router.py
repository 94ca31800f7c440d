"""The real router before simulated workers."""

import asyncio
from typing import Any

import pytest
from simulatedworkers import cluster_spec, wanted

from kvferry.integrations.sglang.plugin.wire import RequestRecord, decode
from kvferry.integrations.sglang.poller import Target
from kvferry.integrations.sglang.simulated.cluster import SimulatedCluster
from kvferry.integrations.sglang.simulated.options import SimulationOptions

PATHS = {"mooncake": "ib_ndr400_gdr_per_nic"}


def targets(cluster: SimulatedCluster) -> tuple[Target, ...]:
    return tuple(
        Target(berth.url, berth.role, bootstrap_port=berth.bootstrap_port) for berth in cluster.berths
    )


@pytest.mark.parametrize(("policy", "mode"), [("always_split", "split"), ("always_colocated", "colocated")])
async def test_predicted_and_simulated_times_stand_in_the_log(route: Any, policy: str, mode: str) -> None:
    async with SimulatedCluster(
        cluster_spec(p=2, d=1, l=1, c=1), SimulationOptions(time_scale=5.0)
    ) as cluster:
        router = await route(*targets(cluster), policy=policy, path_classes=PATHS)
        for stream in (False, True):
            answer = await router.post(body=wanted(5, stream=stream))
            assert answer.status == 200
            record = router.record(answer.headers)
            assert record.chosen.mode == mode
            assert record.outcome.status == "ok"
            assert record.outcome.output_tokens == 5
            assert record.outcome.prompt_tokens == 300
            assert record.terms.ttft_s.p50 > 0.0
            assert 0.0 < record.outcome.ttft_s < record.outcome.e2e_s
            if mode == "split":
                assert record.chosen.path_class == PATHS["mooncake"]
                assert record.outcome.stages.transfer_s > 0.0


async def test_batches_chats_and_completions_pass(route: Any) -> None:
    async with SimulatedCluster(cluster_spec(p=1, l=1, c=1), SimulationOptions(time_scale=30.0)) as cluster:
        router = await route(*targets(cluster), policy="coin(0.5)", path_classes=PATHS)
        limits = {"max_tokens": 4, "ignore_eos": True}
        chat = {"messages": [{"role": "user", "content": "hello"}], **limits}
        batch = {**wanted(3), "input_ids": [[1, 2, 3], [4, 5]]}
        asked = (
            ("/v1/chat/completions", chat),
            ("/v1/completions", {"prompt": "hi", **limits}),
            ("/generate", batch),
        )
        for path, body in asked:
            for _ in range(6):
                answer = await router.post(path, {**body, "stream": path != "/generate"})
                assert answer.status == 200, answer.raw
                assert answer.raw.rstrip().endswith(b"data: [DONE]") or path == "/generate"


async def test_a_client_that_leaves_frees_both_workers(route: Any, eventually: Any) -> None:
    async with SimulatedCluster(cluster_spec(p=1, d=1), SimulationOptions(time_scale=5.0)) as cluster:
        router = await route(*targets(cluster), path_classes=PATHS)
        body = {**wanted(30_000), "input_ids": [7] * 60_000}
        task = asyncio.create_task(router.post(body=body))
        workers = cluster.workers.values()
        await eventually(lambda: all(worker.busy for worker in workers) or task.done())
        assert not task.done()
        task.cancel()
        await eventually(lambda: not any(worker.busy for worker in workers))
        await eventually(router.idle)
        await eventually(lambda: not any(worker.engine.kv.used_tokens for worker in workers))


async def test_an_unstreamed_prompt_is_no_work_ahead_once_it_must_be_computed(
    route: Any, eventually: Any
) -> None:
    async with SimulatedCluster(cluster_spec(c=1), SimulationOptions(time_scale=2.0)) as cluster:
        router = await route(*targets(cluster))
        task = asyncio.create_task(router.post(body=wanted(30_000)))
        (url,) = (berth.url for berth in cluster.berths)
        held = router.ferry.book.now
        await eventually(lambda: url in held and held[url].prefill_tokens == 300.0)
        await eventually(lambda: held[url].prefill_tokens == 0.0)
        assert held[url].decodes == 1.0, "the answer is still being made"
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("policy", "mode"), [("always_split", "split"), ("always_colocated", "colocated")])
async def test_with_telemetry_the_stages_add_up_to_the_requests_time(
    route: Any, eventually: Any, store_url: str, policy: str, mode: str
) -> None:
    options = SimulationOptions(time_scale=2.0, redis=store_url)
    async with SimulatedCluster(cluster_spec(p=1, l=1), options) as cluster:
        router = await route(*targets(cluster), policy=policy, path_classes=PATHS)
        workers = router.ferry.fleet.members
        await eventually(lambda: not any(router.ferry.fleet.silence(name) for name in workers))
        limits = {"max_tokens": 5, "ignore_eos": True}
        chat = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello " * 200}], **limits})
        for path, body in (chat, ("/generate", wanted(5)), ("/generate", wanted(5, stream=True))):
            answer = await router.post(path, body)
            await eventually(lambda: router.ferry.join.held == 0)
            outcome = router.record(answer.headers).outcome
            spent = (getattr(outcome.stages, name) or 0.0 for name in outcome.stages.__struct_fields__)
            assert outcome.missing == {}
            assert outcome.output_tokens == 5
            assert 0.0 < outcome.ttft_s < outcome.e2e_s
            assert sum(spent) == pytest.approx(outcome.e2e_s, rel=0.3)
            if mode == "split":
                shape = workers[cluster.berths[0].url].worker.shape
                fresh = outcome.prompt_tokens - outcome.cached_tokens
                least = shape.bytes_per_token("bfloat16", 2) * fresh
                assert outcome.moved_bytes >= least
                assert outcome.moved.transport == "mooncake"
                assert outcome.moved.busy_s > 0.0


async def test_an_aborted_half_tells_how_far_it_came(
    route: Any, eventually: Any, store_url: str, store: Any
) -> None:
    options = SimulationOptions(time_scale=2.0, redis=store_url)
    async with SimulatedCluster(cluster_spec(c=1), options) as cluster:
        router = await route(*targets(cluster))
        task = asyncio.create_task(router.post(body=wanted(30_000, rid="long")))
        (worker,) = cluster.workers.values()
        await eventually(lambda: worker.busy)
        await asyncio.sleep(0.1)
        task.cancel()
        last: list[Any] = []

        async def told() -> bool:
            rows = await store.client.xrevrange(store.keys.telemetry, count=20)
            last[:] = [
                record
                for _, fields in rows
                if isinstance(record := decode(fields[b"data"]), RequestRecord) and record.rid == "long"
            ]
            return bool(last)

        await eventually(told)
        (record,) = last
        assert (record.role, record.finish) == ("colocated", "abort")
        assert record.wall_s == pytest.approx(
            sum(getattr(record.stages, name) or 0.0 for name in record.stages.__struct_fields__), abs=1e-4
        )
