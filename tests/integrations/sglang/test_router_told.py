"""What the plugins' records tell the router of its workers: that they live, stall, what they know."""

import logging
from typing import Any

import pytest

from kvferry.integrations.sglang import fleet as fleet_module
from kvferry.integrations.sglang.plugin import wire
from kvferry.integrations.sglang.plugin.wire import LoadRecord, LocalLoad


async def test_a_plugin_that_falls_silent_is_told_of_once(
    fake: Any, worker: Any, route: Any, tell: Any, eventually: Any, monkeypatch: Any, caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    one = await worker("decode", internal_states=fake.states("decode", "id"))
    await route(one)
    silent = f"{one.url}: nothing is heard from its plugin; not known: wait for KV room"
    monkeypatch.setattr(fleet_module, "UNHEARD_AFTER_S", 0.0)
    await eventually(lambda: silent in caplog.text)
    polls = one.polls
    await eventually(lambda: one.polls > polls + 2)
    assert caplog.text.count(silent) == 1
    monkeypatch.setattr(fleet_module, "UNHEARD_AFTER_S", 60.0)
    await tell(LoadRecord("id"))
    await eventually(lambda: f"{one.url}: its plugin is heard again" in caplog.text)


async def test_while_the_store_is_away_no_plugin_is_blamed_for_it(
    fake: Any, worker: Any, route: Any, eventually: Any, monkeypatch: Any, caplog: Any, tmp_path: Any
) -> None:
    caplog.set_level(logging.INFO)
    one = await worker("decode", internal_states=fake.states("decode", "id"))
    router = await route(one, redis=f"unix://{tmp_path}/nobody")
    await eventually(lambda: not router.ferry.sink.up)
    monkeypatch.setattr(fleet_module, "UNHEARD_AFTER_S", 0.0)
    polls = one.polls
    await eventually(lambda: one.polls > polls + 2)
    assert "nothing is heard" not in caplog.text


async def test_measured_stalls_reach_the_policy(
    fake: Any, worker: Any, route: Any, tell: Any, eventually: Any
) -> None:
    one = await worker("decode", internal_states=fake.states("decode", "id"))
    router = await route(one)
    member = router.ferry.fleet.members[one.url]

    def stall_s_per_token() -> float:
        return float(member.worker.load.stall_s_per_token)

    assert stall_s_per_token() == 0.0
    await tell(LoadRecord("id", local=LocalLoad(stalls=1, stalled_tokens=1000, stall_s=0.05)))
    await eventually(lambda: stall_s_per_token() == pytest.approx(5e-5))
    polls = one.polls
    await eventually(lambda: one.polls > polls + 1)  # a poll does not forget it
    assert stall_s_per_token() == pytest.approx(5e-5)
    await tell(LoadRecord("of another worker", local=LocalLoad(stalls=1, stalled_tokens=10, stall_s=9.0)))
    await tell(LoadRecord("id", local=LocalLoad(stalls=9, stalled_tokens=9000, stall_s=0.85)))
    await eventually(lambda: stall_s_per_token() == pytest.approx(0.85 / 9000, rel=0.05))
    cluster = router.ferry.fleet.cluster(member.worker.model)
    assert cluster.state.stall_s_per_token.max() == stall_s_per_token()


async def test_a_restarted_worker_is_another_instance(
    fake: Any, worker: Any, route: Any, tell: Any, eventually: Any
) -> None:
    one = await worker("colocated", internal_states=fake.states("colocated", "before"))
    router = await route(one)
    fleet = router.ferry.fleet
    assert fleet.instances == {"before": one.url}
    await one.kill()
    await eventually(lambda: not fleet.members[one.url].worker.healthy)
    one.info["internal_states"] = fake.states("colocated", "after")
    await one.start()
    await eventually(lambda: fleet.instances == {"after": one.url})
    assert fleet.heard("before") is None


async def test_what_is_no_record_is_counted_and_told_once(
    worker: Any, route: Any, tell: Any, eventually: Any, caplog: Any
) -> None:
    router = await route(await worker())

    async def count() -> bool:
        text = (await router.get("/metrics")).raw.decode()
        return "kvferry_telemetry_undecodable_total 3.0" in text

    await tell(b"", b"\xff{", b'{"type": "of the future"}')
    await eventually(count)
    assert caplog.text.count("telemetry that cannot be read") == 1


async def test_an_id_that_the_model_does_not_know_reaches_no_worker(
    fake: Any, worker: Any, route: Any, tell: Any, eventually: Any
) -> None:
    one = await worker(internal_states=fake.states("colocated", "ic"))
    router = await route(one)
    last = {"input_ids": [5, 4095], "sampling_params": {"max_new_tokens": 4}}
    await tell(wire.WorkerRecord("ic", vocab_tokens=4096))
    await eventually(lambda: router.ferry.fleet.vocab_tokens("Qwen3-8B") == 4096)
    assert (await router.post(body=last)).status == 200
    for beyond in ([5, 4096], [99_999_999], [[1, 2], [3, 4096]]):
        answer = await router.post(body={**last, "input_ids": beyond})
        assert answer.status == 400
        assert b"is beyond the model's vocabulary of 4096" in answer.raw
    assert len(one.seen) == 1
