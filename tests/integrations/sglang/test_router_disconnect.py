"""A client that leaves: both workers are told, connections are closed, nothing stays counted."""

import asyncio
import contextlib
from typing import Any

import pytest

TEXT = {"text": "hello", "sampling_params": {"max_new_tokens": 4}}


async def leave(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _empty(router: Any) -> bool:
    return await router.leases() == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_first_byte_aborts_both_halves(
    pair: Any, route: Any, fake: Any, eventually: Any, stream: bool
) -> None:
    workers = await pair()
    router = await route(*workers.all, policy="always_split")
    for one in (workers.pre[0], workers.dec[0]):
        one.act = fake.Act(trouble="hang")
    body = {**TEXT, "stream": stream}
    posting = asyncio.create_task(router.post(body=body))
    await eventually(lambda: workers.pre[0].running and workers.dec[0].running, "both asked")
    await eventually(lambda: _held(router), "leases taken")
    await leave(posting)
    for one in (workers.pre[0], workers.dec[0]):
        await eventually(lambda one=one: one.seen[0].json["rid"] in one.aborts, "abort")
        await eventually(lambda one=one: one.running == 0 and one.cancelled == 1, "connection closed")
    assert not workers.col[0].seen
    await eventually(router.idle, "book empty")
    await eventually(lambda: _empty(router), "leases released")
    (record,) = router.ferry.recent._records.values()
    assert record.outcome.status == "cancelled"


async def _held(router: Any) -> bool:
    return await router.leases() != {}


async def test_leaving_in_the_middle_of_a_stream_aborts_and_counts_once(
    pair: Any, route: Any, fake: Any, eventually: Any
) -> None:
    workers = await pair()
    router = await route(*workers.all, policy="always_split")
    decode = workers.dec[0]
    decode.act = fake.Act(gap_s=0.02)
    decode.tokens = 1000
    async with router.session.post(router.url + "/generate", json={**TEXT, "stream": True}) as response:
        await response.content.readany()
        rid = response.headers["x-kvferry-id"]
    await eventually(lambda: rid in decode.aborts, "abort")
    await eventually(lambda: decode.running == 0, "connection closed")
    await eventually(router.idle, "book empty")
    await eventually(lambda: _empty(router), "leases released")
    assert router.record({"x-kvferry-id": rid}).outcome.status == "cancelled"
    metrics = (await router.get("/metrics")).raw.decode()
    line = next(line for line in metrics.splitlines() if line.startswith("kvferry_requests_total"))
    assert 'status="cancelled"' in line
    assert line.endswith(" 1.0")
    assert "kvferry_in_flight 0.0" in metrics


async def test_leaving_on_the_last_event_is_no_leaving_early(
    worker: Any, route: Any, fake: Any, eventually: Any
) -> None:
    one = await worker()
    one.act = fake.Act(gap_s=0.3)
    one.tokens = 1
    router = await route(one)
    async with router.session.post(router.url + "/generate", json={**TEXT, "stream": True}) as response:
        seen = b""
        while not seen.endswith(b"[DONE]\n\n"):
            seen += await response.content.readany()
        headers = response.headers
        response.close()
    await eventually(lambda: router.record(headers).outcome is not None, "recorded")
    outcome = router.record(headers).outcome
    assert (outcome.status, outcome.output_tokens) == ("ok", 1)
    await eventually(router.idle, "book empty")


async def test_every_sequence_of_a_batch_is_aborted(
    pair: Any, route: Any, fake: Any, eventually: Any
) -> None:
    workers = await pair()
    router = await route(*workers.all, policy="always_split")
    for one in (workers.pre[0], workers.dec[0]):
        one.act = fake.Act(trouble="hang")
    posting = asyncio.create_task(router.post(body={"text": ["a", "b", "c"]}))
    await eventually(lambda: workers.pre[0].running and workers.dec[0].running, "both asked")
    await leave(posting)
    for one in (workers.pre[0], workers.dec[0]):
        sent = one.seen[0].json["rid"]
        assert len(sent) == 3
        await eventually(lambda one=one, sent=sent: set(one.aborts) >= set(sent), "all three")


async def test_many_that_leave_at_once_leave_nothing_behind(
    pair: Any, route: Any, fake: Any, eventually: Any
) -> None:
    workers = await pair()
    router = await route(*workers.all, policy="coin(0.5)")
    for one in workers.all:
        one.act = fake.Act(delay_s=0.3)
    posting = [asyncio.create_task(router.post(body={**TEXT, "stream": i % 2 == 0})) for i in range(40)]
    await asyncio.sleep(0.1)
    for task in posting[::2]:
        task.cancel()
    answers = await asyncio.gather(*posting, return_exceptions=True)
    assert [answer.status for answer in answers[1::2]] == [200] * 20
    await eventually(router.idle, "book empty")
    await eventually(lambda: _empty(router), "leases released")
    await eventually(lambda: all(one.running == 0 for one in workers.all), "workers idle")
    await eventually(lambda: not router.ferry.legs._background, "aborts done")
    assert all(not member.watchers for member in router.ferry.fleet.members.values())
    assert {record.outcome.status for record in router.ferry.recent._records.values()} <= {"ok", "cancelled"}
