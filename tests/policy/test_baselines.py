"""Each baseline at the boundary of its published rule."""

from dataclasses import replace

import pytest
from worlds import ask, busy, cluster, trio, worker

from kvferry.policy import base
from kvferry.policy.decision import Reason
from kvferry.policy.plan import Mode
from kvferry.policy.request import SLO
from kvferry.policy.worker import Role, Worker

SPLIT, COLOCATED = Mode.SPLIT, Mode.COLOCATED


def mode(policy: str, fleet: list[Worker] | None = None, tokens: int = 4000, **request: object) -> Mode:
    decision = base.make(policy).decide(ask(tokens, **request), cluster(fleet or trio()))
    assert decision.reason is Reason.RULE
    assert decision.policy == base.make(policy).name
    return decision.mode


def loaded(**loads: float) -> list[Worker]:
    """The trio with `loads` tokens waiting for prefill, by role."""
    return [replace(each, load=busy(0, prefill_tokens=loads.get(each.id, 0.0))) for each in trio()]


@pytest.mark.parametrize("tokens", [1, 100_000])
def test_fixed_modes(tokens: int) -> None:
    assert mode("always_split", tokens=tokens) is SPLIT
    assert mode("always_colocated", tokens=tokens) is COLOCATED


@pytest.mark.parametrize(("tokens", "expected"), [(999, COLOCATED), (1000, SPLIT), (1001, SPLIT)])
def test_length_threshold(tokens: int, expected: Mode) -> None:
    assert mode("length_threshold(1000)", tokens=tokens) is expected


@pytest.mark.parametrize(
    ("held", "expected"), [(0, SPLIT), (3488, SPLIT), (3489, COLOCATED), (4000, COLOCATED)]
)
def test_llmd_prefix_threshold_looks_at_uncached_tokens(held: int, expected: Mode) -> None:
    assert mode("llmd_prefix_threshold", held_tokens={"colocated": held}) is expected


@pytest.mark.parametrize(
    ("tokens", "held", "expected"),
    [
        (1000, 0, SPLIT),  # short, but nothing cached: the ratio is 1
        (1000, 300, SPLIT),  # 0.7 exactly
        (1000, 301, COLOCATED),
        (4000, 1952, SPLIT),  # 2048 exactly
        (4000, 1953, COLOCATED),
        (100_000, 90_000, SPLIT),  # mostly cached, but 10,000 left
    ],
)
@pytest.mark.parametrize("policy", ["dynamo_isl_bounding", "dynamo_isl_or_load"])
def test_dynamo_bypasses_when_both_bounds_hold(policy: str, tokens: int, held: int, expected: Mode) -> None:
    assert mode(policy, tokens=tokens, held_tokens={"colocated": held}) is expected


def test_dynamo_isl_or_load_bypasses_a_loaded_prefill() -> None:
    assert mode("dynamo_isl_or_load", loaded(prefill=8192)) is SPLIT
    assert mode("dynamo_isl_or_load", loaded(prefill=8193)) is COLOCATED
    assert mode("dynamo_isl_bounding", loaded(prefill=8193)) is SPLIT


def test_dynamo_isl_or_load_does_not_bypass_to_a_busy_worker() -> None:
    prefill, decode, colocated = loaded(prefill=20_000)
    free, full = (
        replace(colocated, max_total_tokens=100_000, load=busy(3, context)) for context in (90_000, 90_001)
    )
    assert mode("dynamo_isl_or_load", [prefill, decode, free]) is COLOCATED
    assert mode("dynamo_isl_or_load", [prefill, decode, full]) is SPLIT


def test_aibrix_combined_needs_an_idle_combined_worker_and_a_hot_pair() -> None:
    slo = SLO(ttft_s=1.0)  # 20,000 tokens/s: a load of 1 is 20,000 tokens waiting
    rule = "aibrix_combined"
    assert mode(rule, loaded(prefill=20_000), slo=slo) is SPLIT
    assert mode(rule, loaded(prefill=20_001), slo=slo) is COLOCATED
    assert mode(rule, loaded(prefill=20_001, colocated=4999), slo=slo) is COLOCATED
    assert mode(rule, loaded(prefill=20_001, colocated=5000), slo=slo) is SPLIT


def test_aibrix_combined_counts_kv_use_too() -> None:
    prefill, decode, colocated = trio()
    full = replace(decode, max_total_tokens=100_000, load=busy(9, 100_001))
    assert mode("aibrix_combined", [prefill, full, colocated]) is COLOCATED
    assert mode("aibrix_combined", [prefill, full, replace(colocated, load=busy(9, 3e5))]) is SPLIT


def test_least_load_takes_the_shorter_queue_whatever_its_mode() -> None:
    assert mode("least_load", loaded(colocated=1000)) is SPLIT
    assert mode("least_load", loaded(prefill=1000)) is COLOCATED


def test_least_load_does_not_count_its_own_prefill() -> None:
    fleet = [worker(Role.COLOCATED, name) for name in ("a", "b")]
    decision = base.make("least_load").decide(ask(held_tokens={"b": 3900}), cluster(fleet))
    assert decision.plan.key == "colocated:a"


@pytest.mark.parametrize(("queued", "chosen"), [(0, "b"), (3000, "b"), (5000, "a")])
def test_a_held_prefix_draws_a_request_until_the_queue_there_is_longer(queued: int, chosen: str) -> None:
    fleet = [worker(Role.COLOCATED, "a"), worker(Role.COLOCATED, "b", load=busy(0, prefill_tokens=queued))]
    fleet = [replace(each, speed=replace(each.speed, prefill_s_per_token2=0.0)) for each in fleet]
    decision = base.make("always_colocated").decide(ask(held_tokens={"b": 3900}), cluster(fleet))
    assert decision.plan.key == f"colocated:{chosen}"


def test_random_by_workers_is_weighted_by_worker_count() -> None:
    fleet = [worker(Role.PREFILL), worker(Role.DECODE)]
    fleet += [worker(Role.COLOCATED, f"c{i}") for i in range(6)]
    made = [base.make("random_by_workers").decide(ask(seed=seed), cluster(fleet)) for seed in range(400)]
    assert {each.propensity_mode for each in made if each.mode is SPLIT} == {0.25}
    assert {each.plan.key for each in made if each.mode is COLOCATED} == {f"colocated:c{i}" for i in range(6)}


def test_own_work_in_flight_counts_before_any_report_does() -> None:
    world = cluster([worker(Role.COLOCATED, name) for name in ("a", "b")])
    assert base.make("always_colocated").decide(ask(), world).plan.key == "colocated:a"
    world.state.own_prefill_s[world.candidates.index["a"]] = 1e-3
    for policy in ("always_colocated", "least_load", "kvferry"):
        assert base.make(policy).decide(ask(), world).plan.key == "colocated:b"


@pytest.mark.parametrize("policy", ["always_split", "coin(1)", "dynamo_isl_or_load", "aibrix_combined"])
def test_a_mode_without_a_plan_yields_to_the_other(policy: str) -> None:
    decision = base.make(policy).decide(ask(), cluster([worker(Role.COLOCATED)]))
    assert (decision.mode, decision.reason) == (COLOCATED, Reason.ONLY_OPTION)
    assert (decision.propensity_mode, decision.propensity_plan) == (1.0, 1.0)
    decision = base.make("always_colocated").decide(ask(), cluster(trio()[:2]))
    assert (decision.mode, decision.reason) == (SPLIT, Reason.ONLY_OPTION)
