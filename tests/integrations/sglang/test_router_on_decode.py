"""A decode worker that serves alone what its plugin can, and what becomes of the rest."""

from typing import Any

import pytest

from kvferry.integrations.sglang import poller

SHORT = {"text": "hello", "sampling_params": {"max_new_tokens": 4}}


def told(on: bool = True, why: str = "") -> list[Any]:
    """/server_info's internal states of a decode worker with the plugin."""
    local = {"on": True} if on else {"on": False, "why": why}
    return [{"kvferry": {"version": "0.1.0", "instance": "i", "features": {"local_prefill": local}}}]


@pytest.fixture
async def cluster(worker: Any, fake: Any) -> Any:
    """(prefill, decode): the latter also serves alone."""
    rooms = fake.Rooms()
    pre = await worker("prefill", rooms, page_size=64)
    return pre, await worker("decode", rooms, page_size=64, internal_states=told())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "refusal",
    ["local prefill does not do sessions", "Disaggregated request received without bootstrap room id."],
)
async def test_what_it_cannot_serve_alone_is_split(
    cluster: Any, route: Any, fake: Any, refusal: str, stream: bool
) -> None:
    pre, dec = cluster
    router = await route(*cluster, policy="always_colocated")
    dec.acts.append(fake.Act(status=400, body=b'{"error": {"message": "%s"}}' % refusal.encode()))
    answer = await router.post(body={**SHORT, "stream": stream})
    assert (answer.status, answer.plan) == (200, f"split:{pre.url}>{dec.url}@mooncake")
    assert dec.seen[0].json["do_local_prefill"] is True
    assert dec.seen[0].json["bootstrap_room"] is None
    assert "do_local_prefill" not in dec.seen[1].json
    assert router.record(answer.headers).outcome.rescued_from == (f"colocated:{dec.url}",)


async def test_what_a_client_says_of_a_bootstrap_is_not_passed_on(
    cluster: Any, route: Any, fake: Any, eventually: Any
) -> None:
    _, dec = cluster
    router = await route(*cluster, policy="always_colocated")
    dec.act = fake.Act(body=b'{"text": "x", "output_ids": [1], "meta_info": {}}', alone=True)
    dec.role = "colocated"  # as to whether it answers without a bootstrap room
    answer = await router.post(body={**SHORT, "bootstrap_room": 5, "bootstrap_host": "elsewhere"})
    assert (answer.status, answer.plan) == (200, f"colocated:{dec.url}")
    sent = dec.seen[0].json
    assert (sent["bootstrap_room"], sent["bootstrap_host"]) == (None, "do_local_prefill")


async def test_several_samples_wait_for_a_worker_that_is_down(
    cluster: Any, route: Any, eventually: Any
) -> None:
    _, dec = cluster
    router = await route(*cluster)
    body = {"model": "Qwen3-8B", "messages": [{"role": "user", "content": "x"}], "n": 2}
    await dec.kill()
    await eventually(lambda: not router.ferry.fleet.members[dec.url].worker.healthy)
    assert (await router.post("/v1/chat/completions", body=body)).status == 503


async def test_a_mistake_of_the_client_is_told_at_once(cluster: Any, route: Any, fake: Any) -> None:
    pre, dec = cluster
    router = await route(*cluster, policy="always_colocated")
    dec.acts.append(fake.Act(status=400, body=b'{"error": {"message": "top_p must be in (0, 1]"}}'))
    answer = await router.post(body=SHORT)
    assert answer.status == 400
    assert b"top_p" in answer.raw
    assert not pre.seen


async def test_a_feature_that_turned_itself_off_is_used_no_more(
    cluster: Any, route: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pre, dec = cluster
    caplog.set_level("INFO")
    router = await route(*cluster, policy="always_colocated")
    dec.info["internal_states"] = told(on=False, why="3 hooks failed")
    # the fake refuses as SGLang does, and that makes the router ask what the plugin does by now
    answer = await router.post(body=SHORT)
    assert answer.status == 200
    assert answer.plan.startswith("split:")
    changed = f"{dec.url}: its plugin has changed: local_prefill off (3 hooks failed)"
    await eventually(lambda: changed in caplog.text)
    before = len(dec.seen)
    answer = await router.post(body=SHORT)
    assert router.record(answer.headers).reason == "only_option"
    assert len(dec.seen) == before + 1
    assert "do_local_prefill" not in dec.seen[-1].json
    assert len(pre.seen) == 2


async def test_a_change_is_found_without_being_run_into(
    cluster: Any, route: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "FEATURES_S", 0.05)
    _, dec = cluster
    router = await route(*cluster)
    members = router.ferry.fleet.members
    assert members[dec.url].worker.local_prefill
    dec.info["internal_states"] = told(on=False, why="3 hooks failed")
    await eventually(lambda: not members[dec.url].worker.local_prefill)
