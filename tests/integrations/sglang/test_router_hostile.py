"""Clients, workers and requests that do harm, if they are let."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from kvferry.integrations.sglang import legs, relay
from kvferry.integrations.sglang.poller import Target
from kvferry.integrations.sglang.serving import running
from kvferry.integrations.sglang.settings import Settings

TEXT = {"text": "hello", "sampling_params": {"max_new_tokens": 4}}
SECRET = "how do I use Bootstrap CSS"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_clients_own_id_is_never_aborted(
    pair: Any, route: Any, fake: Any, eventually: Any, stream: bool
) -> None:
    """SGLang would abort every id that begins with it, strangers' too: "1" is the beginning of many."""
    workers = await pair()
    router = await route(*workers.all, policy="always_split")
    for one in (workers.pre[0], workers.dec[0]):
        one.act = fake.Act(trouble="hang")
    posting = asyncio.create_task(router.post(body={**TEXT, "rid": "1", "stream": stream}))
    await eventually(lambda: workers.pre[0].running and workers.dec[0].running, "both asked")
    posting.cancel()
    for one in (workers.pre[0], workers.dec[0]):
        await eventually(lambda one=one: one.running == 0, "connection closed")
    await router.ferry.legs.close()
    assert [one.aborts for one in workers.all] == [[] for _ in workers.all]
    await eventually(router.idle, "book empty")


@pytest.mark.parametrize("body", [{"text": ""}, {"text": ["a", ""]}, {"input_ids": [[1], []]}])
async def test_an_empty_prompt_ends_no_scheduler(worker: Any, route: Any, body: Any) -> None:
    one = await worker()
    answer = await (await route(one)).post(body=body)
    assert (answer.status, one.seen) == (400, [])
    assert json.loads(answer.raw)["error"]["type"] == "invalid_request_error"


async def test_a_request_that_kills_its_workers_is_not_carried_on(worker: Any, route: Any, fake: Any) -> None:
    workers = [await worker() for _ in range(5)]
    for one in workers:
        one.act = fake.Act(trouble="reset")
    answer = await (await route(*workers, max_attempts=5)).post(body=TEXT)
    assert answer.status == 502
    assert sum(len(one.seen) for one in workers) == 2


@pytest.mark.parametrize("mark", ["", "KVTransferError: ", "x failed for request rank=0: "])
async def test_a_workers_words_do_not_reach_the_record(
    worker: Any, route: Any, fake: Any, mark: str, caplog: Any
) -> None:
    one = await worker()
    one.act = fake.Act(status=500, body=json.dumps({"error": {"message": mark + SECRET}}).encode())
    router = await route(one)
    answer = await router.post(body=TEXT)
    assert SECRET in answer.raw.decode()  # the client may know
    record = router.record(answer.headers)
    assert record.outcome.status == "failed"
    assert SECRET not in repr(record) + caplog.text


async def test_a_prompt_that_names_bootstrap_opens_no_breaker(pair: Any, route: Any, fake: Any) -> None:
    workers = await pair(colocated=0)
    workers.dec[0].act = fake.Act(status=500, body=json.dumps({"message": SECRET}).encode())
    router = await route(*workers.all)
    await router.post(body=TEXT)
    assert router.ferry.fleet.breakers.open() == {}


async def test_an_answer_that_its_worker_gave_up_is_no_success(worker: Any, route: Any, fake: Any) -> None:
    one = await worker()
    meta = {"finish_reason": {"type": "abort", "message": "Abort"}, "completion_tokens": 2}
    one.act = fake.Act(body=json.dumps({"text": "half", "meta_info": meta}).encode())
    router = await route(one)
    answer = await router.post(body=TEXT)
    assert answer.status == 200
    assert router.record(answer.headers).outcome.status == "failed"


async def test_a_prefill_answer_that_never_ends_is_given_up(
    pair: Any, route: Any, fake: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(legs, "SETTLE_S", 0.1)
    workers = await pair()
    prefill, decode = workers.pre[0], workers.dec[0]
    prefill.act, decode.act = fake.Act(trouble="hang", alone=True), fake.Act(alone=True)
    router = await route(*workers.all, policy="always_split")
    answer = await router.post(body={**TEXT, "stream": True})
    assert answer.status == 200
    await eventually(lambda: prefill.running == 0, "the prefill leg ended")
    await eventually(lambda: prefill.seen[0].json["rid"] in prefill.aborts, "and was aborted")


async def test_log_probabilities_that_never_come_end_the_wait(
    pair: Any, route: Any, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "PREFILL_ANSWER_S", 0.1)
    workers = await pair()
    workers.pre[0].act, workers.dec[0].act = fake.Act(trouble="hang", alone=True), fake.Act(alone=True)
    router = await route(*workers.all, policy="always_split")
    answer = await router.post(body={**TEXT, "return_logprob": True, "logprob_start_len": 0})
    assert answer.status == 504


async def test_a_request_without_any_plan_is_counted(worker: Any, route: Any, eventually: Any) -> None:
    one = await worker()
    router = await route(one)
    await one.kill()
    await eventually(lambda: not router.ferry.fleet.members[one.url].worker.healthy, "down")
    assert (await router.post(body=TEXT)).status == 503
    counted = 'kvferry_requests_total{endpoint="/generate",mode="none",reason="no_plan",status="failed"} 1.0'
    assert counted in (await router.get("/metrics")).raw.decode()


async def test_a_head_of_the_decisions_does_not_hang(worker: Any, route: Any) -> None:
    router = await route(await worker())
    async with router.session.head(router.url + "/kvferry/decisions") as answer:
        assert answer.status == 405


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_tells_those_who_still_wait(
    worker: Any,
    store_url: str,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    fake: Any,
    eventually: Any,
    stream: bool,
) -> None:
    monkeypatch.setenv("KVFERRY_STATE_DIR", str(tmp_path))
    one = await worker()
    one.act = fake.Act(trouble="hang", after=2 if stream else 0)
    settings = Settings(
        targets=(Target(one.url),), port=0, redis=store_url, name="stops", shutdown_grace_period_secs=0.1
    )
    async with aiohttp.ClientSession() as session:
        async with running(settings) as (ferry, url):
            await eventually(lambda: one.url in ferry.fleet.members, "known")
            posting = asyncio.create_task(session.post(f"{url}/generate", json={**TEXT, "stream": stream}))
            await eventually(lambda: one.running, "asked")
            await asyncio.sleep(0.1)
        answer = await posting
        raw = await answer.read()
    assert answer.status == (200 if stream else 503)
    assert b"the router is stopping" in raw
    assert b"[DONE]" not in raw
    (record,) = ferry.recent._records.values()
    assert record.outcome.status == "failed"
    assert "stop" in record.outcome.error
