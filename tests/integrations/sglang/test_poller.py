"""Workers that come, go, lie, answer nonsense, or fall silent."""

import json
import logging
import re
from typing import Any

import pytest
from aiohttp import web

from kvferry.integrations.sglang.poller import Target
from kvferry.policy.worker import Role

TEXT = {"text": "hello", "sampling_params": {"max_new_tokens": 4}}


def up(router: Any, worker: Any) -> bool:
    member = router.ferry.fleet.members.get(worker.url)
    return member is not None and member.worker.healthy


async def test_roles_are_found_from_urls_alone(pair: Any, route: Any) -> None:
    workers = await pair()
    router = await route(*workers.all)
    roles = {url: member.worker.role for url, member in router.ferry.fleet.members.items()}
    assert [roles[one.url] for one in workers.all] == [Role.PREFILL, Role.DECODE, Role.COLOCATED]


async def test_a_worker_that_starts_late_is_taken_in(worker: Any, route: Any, eventually: Any) -> None:
    one = await worker()
    await one.kill()
    router = await route(Target(one.url), wait_for=0)
    assert (await router.post(body=TEXT)).status == 503
    await one.start()
    await eventually(lambda: up(router, one))
    assert (await router.post(body=TEXT)).status == 200


async def test_one_not_yet_healthy_is_not_used(worker: Any, route: Any, eventually: Any) -> None:
    one = await worker()
    one.healthy = False
    router = await route(Target(one.url), wait_for=0)
    await eventually(lambda: one.polls > 1)
    assert not up(router, one)
    one.healthy = True
    await eventually(lambda: up(router, one))


async def test_one_that_dies_leaves_and_returns_with_nothing_remembered(
    worker: Any, route: Any, eventually: Any
) -> None:
    one = await worker()
    router = await route(one)
    long = {"text": "word " * 2000, "sampling_params": {"max_new_tokens": 4}}
    assert (await router.post(body=long)).status == 200
    assert len(router.ferry.fleet.members[one.url].prefixes) > 10
    await one.kill()
    await eventually(lambda: not up(router, one))
    answer = await router.post(body=TEXT)
    assert answer.status == 503
    await one.start()
    await eventually(lambda: up(router, one))
    assert len(router.ferry.fleet.members[one.url].prefixes) == 0


async def test_a_worker_of_another_role_than_given_is_refused(
    worker: Any, route: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    one = await worker("prefill")
    router = await route(Target(one.url, Role.DECODE), wait_for=0)
    await eventually(lambda: "given as a decode worker but says it is prefill" in caplog.text)
    assert not router.ferry.fleet.members


ODD = {
    "text": lambda: web.Response(text="hello"),
    "list": lambda: web.json_response([1, 2]),
    "null": lambda: web.json_response(None),
    "ranks are numbers": lambda: web.json_response({"loads": [1, 2]}),
    "ranks are a text": lambda: web.json_response({"loads": "many"}),
    "counters are texts": lambda: web.json_response({"loads": [{"num_running_reqs": "many"}]}),
    "counters are lists": lambda: web.json_response({"loads": [{"num_running_reqs": [1]}]}),
    "moments are a number": lambda: web.json_response({"loads": [{"decode_moments": 5}]}),
    "infinite": lambda: web.Response(text='{"loads": [{"num_running_reqs": Infinity}]}'),
    "deep": lambda: web.Response(text="[" * 50_000 + "]" * 50_000),
    "500": lambda: web.Response(status=500),
    "broken": lambda: web.Response(text='{"loads": ['),
}


@pytest.mark.parametrize("odd", ODD)
async def test_nonsense_takes_a_worker_out_and_sense_brings_it_back(
    worker: Any, route: Any, eventually: Any, caplog: pytest.LogCaptureFixture, odd: str
) -> None:
    caplog.set_level(logging.WARNING)
    one = await worker()
    router = await route(one)
    one.answer_loads = ODD[odd]
    await eventually(lambda: not up(router, one), "taken out")
    before, told = one.polls, len(caplog.records)
    router.ferry.poller.ask(one.url)
    await eventually(lambda: one.polls > before, "asked again")
    one.answer_loads = None
    router.ferry.poller.ask(one.url)
    await eventually(lambda: up(router, one), "taken back")
    assert told <= 4
    assert len(caplog.records) <= told + 1
    assert not any(task.done() for task in router.ferry.poller._tasks)


async def test_missing_counters_are_zero(worker: Any, route: Any, eventually: Any) -> None:
    one = await worker()
    router = await route(one)
    one.answer_loads = lambda: web.json_response({})
    before = one.polls
    await eventually(lambda: one.polls > before + 3)
    assert up(router, one)


async def test_a_silent_scheduler_is_left_when_it_is_not_healthy(
    worker: Any, route: Any, eventually: Any
) -> None:
    one = await worker()
    router = await route(one)
    one.stale_s = 60.0
    before = one.polls
    await eventually(lambda: one.polls > before + 2)
    assert up(router, one)
    one.healthy = False
    await eventually(lambda: not up(router, one))
    assert "silent" in router.ferry.fleet.members[one.url].why_down


async def test_old_loads_leave_the_choice_to_the_safe_rule(pair: Any, route: Any) -> None:
    workers = await pair()
    router = await route(*workers.all)
    await router.ferry.poller.stop()
    shift = router.ferry.fleet.clock
    router.ferry.fleet.clock = lambda: shift() + 100.0
    answer = await router.post(body=TEXT)
    assert answer.status == 200
    assert router.record(answer.headers).reason == "stale_load"
    assert re.search(
        r'kvferry_safe_rule_total\{reason="stale_load"\} 1', (await router.get("/metrics")).raw.decode()
    )


async def test_what_workers_report_is_shown(pair: Any, route: Any, eventually: Any) -> None:
    workers = await pair()
    router = await route(*workers.all)
    workers.dec[0].loads["loads"][0]["num_running_reqs"] = 3
    fleet = router.ferry.fleet
    await eventually(lambda: fleet.members[workers.dec[0].url].worker.load.running_requests == 3)
    rows = json.loads((await router.get("/kvferry/workers")).raw)["workers"]
    (row,) = [row for row in rows if row["id"] == workers.dec[0].url]
    assert row["load"]["foreign_decodes"] == 3.0


async def test_a_bootstrap_port_that_the_worker_does_not_confirm_is_told(
    pair: Any, route: Any, caplog: pytest.LogCaptureFixture
) -> None:
    workers = await pair(colocated=0)
    true_port = workers.pre[0].info["disaggregation_bootstrap_port"]
    for port, warned in ((true_port, False), (true_port + 1, True)):
        caplog.clear()
        prefill = Target(workers.pre[0].url, Role.PREFILL, port)
        await route(prefill, Target(workers.dec[0].url, Role.DECODE))
        assert ("bootstrap port" in caplog.text) is warned
