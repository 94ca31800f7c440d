"""A leg that is refused, fails, hangs or lies before the first byte: the request is run again elsewhere."""

import asyncio
import json
from typing import Any

import pytest

TEXT = {"text": "hello", "sampling_params": {"max_new_tokens": 4}}


def outcome(router: Any, answer: Any) -> Any:
    return router.record(answer.headers).outcome


def given_up(answer: Any, router: Any) -> list[str]:
    return [key.partition(":")[0] for key in outcome(router, answer).rescued_from]


@pytest.fixture
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.policy import evaluation

    monkeypatch.setattr(evaluation, "DEADLINE_FLOOR_S", 0.3)
    monkeypatch.setattr(evaluation, "DEADLINE_FACTOR", 0.0)


TROUBLES = {
    "500": {"status": 500},
    "503": {"status": 503, "headers": {"Retry-After": "1"}},
    "429": {"status": 429},
    "reset": {"trouble": "reset"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("half", ["pre", "dec"])
@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_split_that_fails_is_run_colocated(
    pair: Any, route: Any, fake: Any, eventually: Any, trouble: str, half: str, stream: bool
) -> None:
    workers = await pair(prefills=2, decodes=1)
    router = await route(*workers.all, policy="always_split")
    for one in getattr(workers, half):
        one.act = fake.Act(**TROUBLES[trouble])
    answer = await router.post(body={**TEXT, "stream": stream})
    assert answer.status == 200
    assert answer.plan == f"colocated:{workers.col[0].url}"
    assert given_up(answer, router) == ["split"]
    assert outcome(router, answer).served_by == answer.plan
    assert router.idle()
    await eventually(lambda: _empty(router), "leases released")


async def _empty(router: Any) -> bool:
    return await router.leases() == {}


async def test_a_refusing_prefill_worker_is_dropped_at_once_and_the_request_served(
    pair: Any, route: Any
) -> None:
    workers = await pair()
    router = await route(*workers.all, policy="always_split", poll_interval_s=30.0)
    await workers.pre[0].kill()
    answer = await router.post(body=TEXT)
    assert answer.status == 200
    assert answer.plan.startswith("colocated")
    assert not router.ferry.fleet.members[workers.pre[0].url].worker.healthy
    assert not outcome(router, await router.post(body=TEXT)).rescued_from


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("half", ["pre", "dec"])
async def test_a_hanging_half_is_given_up_at_its_deadline_and_aborted(
    pair: Any, route: Any, fake: Any, eventually: Any, short_deadline: None, half: str, stream: bool
) -> None:
    workers = await pair()
    router = await route(*workers.all, policy="always_split", slo_itl_s=0.001)
    getattr(workers, half)[0].act = fake.Act(trouble="hang")
    answer = await router.post(body={"text": "a", "sampling_params": {"max_new_tokens": 1}, "stream": stream})
    assert answer.status == 200
    assert answer.plan.startswith("colocated")
    rid = answer.headers["x-kvferry-id"]
    for one in (workers.pre[0], workers.dec[0]):
        await eventually(lambda one=one: rid in one.aborts, "abort on both halves")
        await eventually(lambda one=one: one.running == 0, "connection closed")


@pytest.mark.parametrize("trouble", ["error", "abort"])
@pytest.mark.parametrize("chunk_bytes", [0, 5])
async def test_an_error_told_in_a_200_stream_before_any_content_is_rescued(
    pair: Any, route: Any, fake: Any, trouble: str, chunk_bytes: int
) -> None:
    workers = await pair()
    router = await route(*workers.all, policy="always_split")
    act = fake.Act(status=500, trouble=trouble, after=0, chunk_bytes=chunk_bytes)
    workers.dec[0].act = act
    workers.pre[0].act = fake.Act(alone=True)
    answer = await router.post(body={**TEXT, "stream": True})
    assert answer.status == 200
    assert answer.plan.startswith("colocated")
    assert b"KVTransferError" not in answer.raw
    assert answer.raw.endswith(b"data: [DONE]\n\n")


async def test_a_400_told_in_a_stream_is_the_clients(worker: Any, route: Any, fake: Any) -> None:
    one = await worker()
    router = await route(one, await worker())
    for each in (one,):
        each.act = fake.Act(status=400, trouble="error")
    for member in list(router.ferry.fleet.members):
        if member != one.url:
            router.ferry.fleet.drop(member, "not in this test")
    answer = await router.post(body={**TEXT, "stream": True})
    assert answer.status == 400
    assert "KVTransferError" in json.loads(answer.raw)["error"]["message"]
    assert len(one.seen) == 1


async def test_without_a_colocated_worker_another_pair_rescues(pair: Any, route: Any, fake: Any) -> None:
    workers = await pair(prefills=2, decodes=1, colocated=0)
    router = await route(*workers.all)
    workers.pre[0].act = fake.Act(status=500)
    for _ in range(4):
        answer = await router.post(body=TEXT)
        assert answer.status == 200
        assert workers.pre[1].url in answer.plan


async def test_a_rescue_on_the_same_decode_worker_uses_ids_that_no_abort_can_hit(
    pair: Any, route: Any, fake: Any, eventually: Any
) -> None:
    """SGLang aborts every request whose id BEGINS with the given one."""
    workers = await pair(prefills=2, decodes=1, colocated=0)
    router = await route(*workers.all)
    for rid in (None, "mine", ["mine_a", "mine_b"]):
        workers.dec[0].seen.clear()
        workers.dec[0].aborts.clear()
        for one in workers.pre:
            one.act = fake.Act()
            one.acts.clear()
        workers.pre[0].acts.append(fake.Act(status=500))
        workers.pre[1].acts.append(fake.Act(status=500))
        text = ["a", "b"] if isinstance(rid, list) else "a"
        answer = await router.post(body={"text": text, **({"rid": rid} if rid else {})})
        while answer.status != 200:
            answer = await router.post(body={"text": text, **({"rid": rid} if rid else {})})
        ids = [seen.json["rid"] for seen in workers.dec[0].seen[-2:]]
        first, second = ([one] if isinstance(one, str) else one for one in ids)
        if rid is None:
            await eventually(lambda: workers.dec[0].aborts, "the first attempt is aborted")
        else:  # an abort by a client's own id might hit strangers: closing the connection must do
            assert not {*first, *second} & {*workers.dec[0].aborts}  # those of the request before may be late
        assert not any(new.startswith(old) for old in first for new in second)
        router.ferry.fleet.breakers._trips.clear()


async def test_attempts_are_bounded(worker: Any, route: Any, fake: Any) -> None:
    workers = [await worker() for _ in range(5)]
    for one in workers:
        one.act = fake.Act(status=500, body=b"down with it")
    router = await route(*workers, max_attempts=3)
    answer = await router.post(body=TEXT)
    assert answer.status == 500
    assert answer.raw == b"down with it"
    assert sum(len(one.seen) for one in workers) == 3
    assert router.record(answer.headers).outcome.status == "failed"
    assert router.idle()


async def test_the_only_worker_is_waited_for_past_the_rescue_deadline(
    worker: Any, route: Any, fake: Any, short_deadline: None
) -> None:
    one = await worker()
    one.act = fake.Act(delay_s=0.8)
    router = await route(one)
    assert (await router.post(body={**TEXT, "stream": True})).status == 200


async def test_the_request_timeout_ends_all_waiting(worker: Any, route: Any, fake: Any) -> None:
    one = await worker()
    one.act = fake.Act(trouble="hang")
    router = await route(one, request_timeout_secs=0.4)
    answer = await router.post(body=TEXT)
    assert answer.status == 504
    assert json.loads(answer.raw)["error"]["type"] == "upstream_error"
    assert router.idle()


@pytest.mark.parametrize("trouble", ["reset", "kill"])
async def test_after_the_first_byte_comes_an_error_event_and_no_done(
    pair: Any, route: Any, fake: Any, eventually: Any, trouble: str
) -> None:
    workers = await pair()
    router = await route(*workers.all, policy="always_split")
    workers.dec[0].act = fake.Act(trouble="hang" if trouble == "kill" else "reset", after=2)
    posting = asyncio.create_task(router.post(body={**TEXT, "stream": True}))
    if trouble == "kill":
        await eventually(lambda: workers.dec[0].running == 1 and workers.pre[0].running == 0, "streaming")
        await asyncio.sleep(0.1)
        await workers.dec[0].kill()
    answer = await posting
    assert answer.status == 200
    assert b"[DONE]" not in answer.raw
    last = answer.raw.rstrip(b"\n").rpartition(b"\n\n")[2]
    assert json.loads(last.removeprefix(b"data: "))["error"]["type"] == "upstream_error"
    assert answer.raw.count(b'"text"') == 2
    await eventually(lambda: outcome(router, answer) is not None, "recorded")
    assert outcome(router, answer).status == "failed"
    assert not outcome(router, answer).rescued_from
    assert router.idle()


async def test_an_error_told_after_content_is_passed_on_and_recorded_as_failed(
    worker: Any, route: Any, fake: Any
) -> None:
    one = await worker()
    one.act = fake.Act(status=500, trouble="error", after=2, gap_s=0.05)
    router = await route(one)
    answer = await router.post(body={**TEXT, "stream": True})
    assert answer.raw.endswith(b"data: [DONE]\n\n")
    assert outcome(router, answer).status == "failed"


async def test_a_worker_going_down_wakes_what_waits_on_it(
    pair: Any, route: Any, fake: Any, eventually: Any
) -> None:
    workers = await pair()
    router = await route(*workers.all, policy="always_split")
    workers.pre[0].act = fake.Act(trouble="hang")
    posting = [asyncio.create_task(router.post(body=TEXT)) for _ in range(8)]
    await eventually(lambda: workers.pre[0].running == 8, "all wait")
    router.ferry.fleet.drop(workers.pre[0].url, "scheduler silent")
    answers = await asyncio.gather(*posting)
    assert [answer.status for answer in answers] == [200] * 8
    assert {answer.plan for answer in answers} == {f"colocated:{workers.col[0].url}"}
    assert router.idle()


async def test_one_cut_connection_does_not_end_other_requests_on_that_worker(
    worker: Any, route: Any, fake: Any, eventually: Any
) -> None:
    one = await worker()
    router = await route(one)
    one.acts.append(fake.Act(gap_s=0.1))
    streaming = asyncio.create_task(router.post(body={**TEXT, "stream": True}))
    await eventually(lambda: one.running == 1, "streaming")
    one.acts.append(fake.Act(trouble="reset"))
    assert (await router.post(body=TEXT)).status == 502
    answer = await streaming
    assert answer.raw.endswith(b"data: [DONE]\n\n")


async def test_a_pairs_breaker_opens_and_closes_again(
    pair: Any, route: Any, fake: Any, eventually: Any
) -> None:
    workers = await pair()
    router = await route(*workers.all, policy="always_split")
    body = b'{"error": {"message": "KVTransferError: Bootstrapping timed out"}}'
    workers.dec[0].acts.append(fake.Act(status=500, body=body))
    workers.pre[0].act = fake.Act(alone=True)
    assert (await router.post(body=TEXT)).plan.startswith("colocated")
    (key,) = router.ferry.fleet.breakers.open()
    assert key == f"split:{workers.pre[0].url}>{workers.dec[0].url}@mooncake"
    workers.pre[0].act = fake.Act()
    answer = await router.post(body=TEXT)
    assert answer.plan.startswith("colocated")
    assert router.record(answer.headers).reasons_against[key] == "path_down"
    links = json.loads((await router.get("/kvferry/links")).raw)
    assert list(links["open_breakers"]) == [key]
    trip = router.ferry.fleet.breakers._trips[key]
    trip.until_s = router.ferry.clock()
    assert (await router.post(body=TEXT)).plan == key
    assert not router.ferry.fleet.breakers._trips
