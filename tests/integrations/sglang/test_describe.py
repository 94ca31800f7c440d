"""What is read of a worker's own answers, of all roles, and of odd ones."""

from typing import Any

import pytest

from kvferry.integrations.sglang.describe import NotAWorkerError, worker_of
from kvferry.integrations.sglang.fleet import snapshot_age_s
from kvferry.models.loads import load_of
from kvferry.policy.layout import LayoutOrder
from kvferry.policy.worker import Role


def described(fake: Any, role: str, loads: Any = None, port: int | None = None, **info: Any) -> Any:
    told = {**fake.golden(f"{role}_server_info"), **info}
    return worker_of("http://10.0.0.7:30000", told, loads or fake.golden(f"{role}_loads"), port)


@pytest.mark.parametrize("role", list(Role))
def test_every_role_is_known_by_its_own_answer(fake: Any, role: Role) -> None:
    worker = described(fake, role.value)
    assert worker.role is role
    assert worker.model == "/models/tiny-llama"
    assert worker.max_total_tokens == 16384
    assert worker.max_running_requests == 8
    assert worker.context_length == 8192
    assert worker.host == "10.0.0.7"
    assert worker.layout.dtype == "float32"
    assert worker.speed.chunk_tokens == 4096
    assert worker.transports == (() if role is Role.COLOCATED else ("mooncake",))
    assert worker.bootstrap_port == (21427 if role is Role.PREFILL else None)
    assert bool(worker.facts["caches_prefixes"]) == (role is not Role.DECODE)


def test_an_unknown_model_has_the_size_its_kv_memory_tells(fake: Any) -> None:
    worker = described(fake, "colocated")
    told = 0.063 * (1 << 30) / 16384
    assert worker.shape.elements_per_token(1) * 4 == pytest.approx(told, rel=0.01)


def test_without_kv_memory_an_unknown_model_is_refused_with_what_to_do(fake: Any) -> None:
    loads = fake.golden("colocated_loads")
    del loads["loads"][0]["memory"]
    with pytest.raises(NotAWorkerError, match=r"tiny-llama.*\[\[model\]\]"):
        described(fake, "colocated", loads)


def test_a_known_model_has_its_catalogued_shape(fake: Any) -> None:
    worker = described(fake, "prefill", served_model_name="Qwen3-8B")
    assert (worker.shape.layers, worker.shape.kv_heads, worker.shape.head_dim) == (36, 8, 128)


def test_a_given_bootstrap_port_wins_and_the_default_is_sglangs(fake: Any) -> None:
    assert described(fake, "prefill", port=5).bootstrap_port == 5
    assert described(fake, "prefill", disaggregation_bootstrap_port=None).bootstrap_port == 8998


def test_dp_attention_divides_the_heads_and_sums_the_room(fake: Any) -> None:
    loads = fake.golden("prefill_loads")
    loads["loads"] = [{**loads["loads"][0], "dp_rank": rank} for rank in range(4)]
    worker = described(fake, "prefill", loads, tp_size=8, dp_size=4, enable_dp_attention=True)
    assert worker.layout.tp == 2
    assert worker.layout.dp == 4
    assert worker.max_total_tokens == 4 * 16384
    assert worker.max_running_requests == 4 * 8
    assert load_of(loads, 0.0).waiting_uncached_tokens == 4 * 7500


def test_layout_facts_are_taken_over(fake: Any) -> None:
    worker = described(
        fake,
        "decode",
        page_size=64,
        enable_page_major_kv_layout=True,
        kv_cache_dtype="fp8_e4m3",
        pp_size=2,
        disable_radix_cache=False,
        disaggregation_decode_enable_radix_cache=True,
        disaggregation_ib_device="mlx5_0",
        chunked_prefill_size=-1,
    )
    assert worker.layout.order is LayoutOrder.PAGE_FIRST
    assert (worker.layout.page_size, worker.layout.pp, worker.layout.dtype) == (64, 2, "fp8_e4m3")
    assert worker.facts["caches_prefixes"] == "yes"
    assert worker.facts["rdma"] == "yes"
    assert worker.speed.chunk_tokens > 1 << 16


@pytest.mark.parametrize("info", [{"disaggregation_mode": "encode"}, {"disaggregation_mode": None}])
def test_a_mode_nobody_knows_is_no_worker(fake: Any, info: dict[str, Any]) -> None:
    with pytest.raises(NotAWorkerError, match="disaggregation_mode"):
        described(fake, "prefill", **info)


def test_a_pair_without_a_transport_is_refused_by_name(fake: Any) -> None:
    with pytest.raises(NotAWorkerError, match="disaggregation_transfer_backend"):
        described(fake, "decode", disaggregation_transfer_backend=None)


@pytest.mark.parametrize("states", [None, [], {}, [None], "x"])
def test_odd_internal_states_are_done_without(fake: Any, states: Any) -> None:
    assert described(fake, "prefill", internal_states=states).max_running_requests == 8


def test_the_loads_of_a_busy_decode_worker(fake: Any) -> None:
    load = load_of(fake.golden("decode_loads"), 3.0)
    assert (load.running_requests, load.waiting_requests) == (1, 10)
    assert (load.prealloc_queue, load.transfer_queue) == (6, 4)
    assert load.used_tokens == 27530
    assert load.time_s == 3.0
    assert load_of({}, 0.0) == load_of({"loads": []}, 0.0)


def test_a_snapshots_age_is_that_of_the_oldest_rank_on_the_workers_clock() -> None:
    ranks = [{"timestamp": 1000.0}, {"timestamp": 998.5}, {"timestamp": 0.0}]
    assert snapshot_age_s({"loads": ranks, "answered_s": 1001.0}) == 2.5
    assert snapshot_age_s({"loads": ranks, "answered_s": 900.0}) == 0.0
    assert snapshot_age_s({"loads": ranks}) == 0.0
    assert snapshot_age_s({}) == 0.0


def plugin(dual: Any = None, **features: Any) -> list[Any]:
    told = {"version": "0.1.0", "instance": "a1", "features": {"dual_transport": dual or {}, **features}}
    return [{"kvferry": told}]


DUAL = {"on": True, "transports": {"nixl": 21428, "mooncake": 21427}}


def test_a_worker_with_the_plugin_has_two_transports_the_one_it_was_started_with_first(fake: Any) -> None:
    source = described(fake, "prefill", internal_states=plugin(DUAL))
    assert source.transports == ("mooncake", "nixl")
    assert [source.bootstrap_port_of(name) for name in source.transports] == [21427, 21428]
    assert source.facts["plugin"] == "0.1.0"
    there = {"on": True, "transports": {"nixl": None, "mooncake": None}}
    sink = described(fake, "decode", internal_states=plugin(there))
    assert (sink.transports, dict(sink.bootstrap_ports)) == (("mooncake", "nixl"), {})
    assert described(fake, "colocated", internal_states=plugin(DUAL)).transports == ()


@pytest.mark.parametrize(
    "dual",
    [
        {},
        {"on": False, "why": "switched off", **{"transports": DUAL["transports"]}},
        {"on": True},
        {"on": True, "transports": None},
        {"on": True, "transports": {"nixl": 5}},
        {"on": True, "transports": {"mooncake": None, "nixl": 5}},
        {"on": True, "transports": {"mooncake": 21427, "nixl": None}},
        {"on": True, "transports": {"mooncake": 21427, "nixl": "x"}},
    ],
)
def test_what_is_not_wholly_told_is_not_used(fake: Any, dual: Any) -> None:
    source = described(fake, "prefill", internal_states=plugin(dual))
    assert source.transports == ("mooncake",)
    assert source.bootstrap_port_of("mooncake") == 21427


def test_a_given_port_that_is_another_leaves_the_transport_whose_port_it_stands_for(fake: Any) -> None:
    same = described(fake, "prefill", port=21427, internal_states=plugin(DUAL))
    assert same.transports == ("mooncake", "nixl")
    mapped = described(fake, "prefill", port=9000, internal_states=plugin(DUAL))
    assert mapped.transports == ("mooncake",)
    assert mapped.bootstrap_port_of("mooncake") == 9000


def test_a_decode_worker_that_can_prefill_and_tells_what_it_measures(fake: Any) -> None:
    on = {"local_prefill": {"on": True}, "telemetry": {"on": True}}
    worker = described(fake, "decode", internal_states=plugin(**on) + plugin(**on))
    assert worker.local_prefill
    assert worker.can_colocate
    assert worker.facts["instances"] == "a1,a1"
    assert not described(fake, "prefill", internal_states=plugin(**on)).local_prefill
    off = described(fake, "decode", internal_states=plugin(local_prefill={"on": False}))
    assert not off.local_prefill
    assert off.facts["instances"] == ""
