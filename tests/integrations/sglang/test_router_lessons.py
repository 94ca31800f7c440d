"""The router learns from what passes through it, and logs what it decided with."""

from typing import Any

import pytest

TEXT = {"text": "hello " * 20, "stream": True, "sampling_params": {"max_new_tokens": 900}}


async def test_what_passed_changes_what_is_expected_of_the_next(
    pair: Any, route: Any, eventually: Any, fake: Any
) -> None:
    workers = await pair(colocated=0)
    router = await route(*workers.all, policy="always_split")
    lessons = router.ferry.fleet.lessons
    workers.dec[0].act = fake.Act(delay_s=0.3)
    first = router.record((await router.post(body=TEXT)).headers)
    assert first.request.expected_output_tokens == 256.0
    for _ in range(4):
        await router.post(body=TEXT)
    await eventually(lambda: lessons.waiting == 0)
    bias = lessons.calibration(first.request.model)
    assert bias.ttft[0] == 0.0
    assert bias.ttft[1] > 0.0
    later = router.record((await router.post(body=TEXT)).headers)
    assert later.request.expected_output_tokens < 256.0
    assert later.request.expected_output_tokens_p90 < first.request.expected_output_tokens_p90
    state = router.ferry.fleet.cluster(first.request.model).state
    assert state.ttft_bias == pytest.approx(bias.ttft)
    assert state.itl_bias == pytest.approx(bias.itl)
    assert len(state.link_slowness) == 1
    assert router.idle()


async def test_a_tenants_answers_are_expected_by_the_router_that_served_them(
    pair: Any, route: Any, eventually: Any, store: Any
) -> None:
    workers = await pair(colocated=0)
    router = await route(*workers.all, tenant_header="X-Team")
    lessons = router.ferry.fleet.lessons
    long = {"text": "hello " * 50, "stream": True, "sampling_params": {"max_new_tokens": 2000}}
    for _ in range(5):
        await router.post(body=long, headers={"x-team": "Acme Corp"})
    await eventually(lambda: lessons.waiting == 0)
    record = router.record((await router.post(body=long, headers={"x-team": "Acme Corp"})).headers)
    told = record.request
    assert len(told.tenant) == len(told.family) == 12
    assert lessons.lengths.answers(told.model, told.tenant, told.family) >= 3.0
    nobody = router.record((await router.post(body=long)).headers).request
    assert (nobody.tenant, nobody.family) == ("", told.family)
    await eventually(lambda: lessons.waiting == 0)
    assert b"Acme" not in lessons.lengths.snapshot()
    assert "Acme" not in repr(record)


async def test_nothing_is_kept_of_requests_that_fail_or_leave(
    pair: Any, route: Any, eventually: Any, fake: Any
) -> None:
    workers = await pair(colocated=1)
    router = await route(*workers.all)
    workers.pre[0].act = workers.dec[0].act = fake.Act(trouble="reset")
    workers.col[0].act = fake.Act(status=500)
    for _ in range(3):
        await router.post(body=TEXT)
    await router.post(body="{")
    await eventually(router.idle)
    lessons = router.ferry.fleet.lessons
    await eventually(lambda: lessons.waiting == 0)
    assert not list(lessons.learner.speeds.overdue(1e12))
