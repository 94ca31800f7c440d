"""Exploration: bounded, never against a hard rule, and with the probabilities that it says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import ask, busy, cluster, clusters, requests, trio, worker

from kvferry.policy.base import make
from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import NoPlanError, Reason
from kvferry.policy.evaluation import Evaluation
from kvferry.policy.expected_loss import ExpectedLoss
from kvferry.policy.exploration import Exploration
from kvferry.policy.plan import Mode
from kvferry.policy.request import Request
from kvferry.policy.worker import Role

EAGER = ExpectedLoss(explore=0.5, explore_budget=0.3)
GREEDY = ExpectedLoss()


def twins() -> Cluster:
    """Two of each: every plan has a like one of its mode."""
    kinds = [(role, f"{role.value}{n}") for role in Role for n in range(2)]
    return cluster([worker(role, name) for role, name in kinds])


@given(world=clusters(), request=requests)
def test_what_is_explored_is_cheap_usable_and_fresh(world: Cluster, request: Request) -> None:
    try:
        found, chosen = EAGER.decide(request, world), GREEDY.decide(request, world)
    except NoPlanError:
        return
    whole = Evaluation.of(request, world)
    total, keys = whole.scores.total, world.candidates.keys
    row = keys.index(found.plan.key)
    assert found.explored == (found.reason is Reason.EXPLORED) == (found.plan != chosen.plan)
    if not found.explored:
        assert (found.reason, found.safe_rule) == (chosen.reason, chosen.safe_rule)
        return
    assert whole.prediction.fits[row]
    assert whole.prediction.feasible[row]
    assert abs(total[row] - total[keys.index(chosen.plan.key)]) < EAGER.explore_budget
    ages_s = world.time_s - world.state.load_time_s[[world.candidates.pre[row], world.candidates.dec[row]]]
    assert ages_s.max() <= EAGER.stale_after_s
    assert chosen.reason is not Reason.STALE_LOAD
    assert set(found.reasons_against) == (set(keys) | set(world.candidates.impossible)) - {found.plan.key}


@given(world=clusters(), request=requests, seeds=st.lists(st.integers(0, 2**63), min_size=1, max_size=30))
def test_probabilities_of_all_plans_add_up_and_every_decision_tells_its_own(
    world: Cluster, request: Request, seeds: list[int]
) -> None:
    try:
        chosen = GREEDY.decide(request, world)
    except NoPlanError:
        return
    evaluation, stale = EAGER._fresh(Evaluation.of(request, world))
    row = world.candidates.keys.index(chosen.plan.key)
    chances = np.eye(len(evaluation.usable))[row]
    if not stale:
        chances = EAGER.exploration.chances(evaluation, row)
    assert chances.sum() == pytest.approx(1.0)
    assert (chances >= 0.0).all()
    assert chances[row] >= 1.0 - EAGER.explore
    for seed in seeds:
        drawn = EAGER.decide(replace(request, seed=seed), world)
        taken = world.candidates.keys.index(drawn.plan.key)
        alike = world.candidates.split == world.candidates.split[taken]
        assert drawn.propensity_plan == pytest.approx(chances[taken])
        assert drawn.propensity_mode == pytest.approx(chances[alike].sum())


@settings(max_examples=5)
@given(first=st.integers(0, 2**62), tokens=st.sampled_from([200, 3000, 9000]))
def test_plans_are_taken_as_often_as_it_says(first: int, tokens: int) -> None:
    world, policy, count = twins(), ExpectedLoss(explore=0.4, explore_budget=0.5), 4000
    taken = np.zeros(len(world.candidates.keys))
    said = np.zeros(len(taken))
    for n in range(count):
        found = policy.decide(ask(tokens, seed=first + n), world)
        row = world.candidates.keys.index(found.plan.key)
        taken[row] += 1
        said[row] = found.propensity_plan
    assert said.sum() == pytest.approx(1.0)
    assert (said > 0.0).sum() > 2  # both modes, and another plan of the same
    np.testing.assert_allclose(taken / count, said, atol=5 * 0.5 / count**0.5)


def test_half_goes_to_the_best_of_the_other_mode_and_half_to_plans_of_the_same() -> None:
    world, policy = twins(), ExpectedLoss(explore=0.4, explore_budget=0.5)
    evaluation = Evaluation.of(ask(3000), world)
    row = world.candidates.keys.index(GREEDY.decide(ask(3000), world).plan.key)
    chances = policy.exploration.chances(evaluation, row)
    other = world.candidates.split != world.candidates.split[row]
    assert chances[other].sum() == pytest.approx(0.2)
    assert np.count_nonzero(chances[other]) == 1
    rest = np.delete(chances, row)[~np.delete(other, row)]
    assert rest.sum() == pytest.approx(0.2)
    assert np.ptp(rest) == pytest.approx(0.0)


@given(world=clusters(), request=requests)
def test_no_exploration_is_the_decision_as_it_was(world: Cluster, request: Request) -> None:
    plain, off = make("kvferry"), make("kvferry", explore=0.0)
    try:
        first, second = plain.decide(request, world), off.decide(request, world)
    except NoPlanError:
        return
    assert (first.plan, first.reason, first.safe_rule) == (second.plan, second.reason, second.safe_rule)
    assert first.propensity_mode == first.propensity_plan == 1.0
    assert not first.explored


@pytest.mark.parametrize(
    ("request_", "world"),
    [
        (ask(3000, priority=1), twins()),
        (ask(3000), replace(twins(), excluded=frozenset({"split:prefill0>decode0@mooncake"}))),
        (ask(3000), replace(twins(), time_s=60.0)),
    ],
    ids=["high priority", "given up before", "stale loads"],
)
def test_some_requests_never_explore(request_: Request, world: Cluster) -> None:
    for seed in range(200):
        found = EAGER.decide(replace(request_, seed=seed), world)
        assert not found.explored
        assert found.propensity_plan == found.propensity_mode == 1.0


def test_a_mode_that_loses_much_is_not_explored() -> None:
    world = cluster(trio(load=busy(200, 400_000, 50_000)))
    for seed in range(200):
        assert EAGER.decide(ask(9000, seed=seed), world).mode is Mode.SPLIT


def test_a_plan_without_room_is_not_explored() -> None:
    small = worker(Role.COLOCATED, "small", max_total_tokens=2000)
    world = cluster([small, worker(Role.COLOCATED, "wide")])
    plans = {EAGER.decide(ask(4000, seed=seed), world).plan.key for seed in range(200)}
    assert plans == {"colocated:wide"}


def test_where_no_plan_has_room_none_is_explored() -> None:
    world = cluster([worker(Role.COLOCATED, f"small{n}", max_total_tokens=2000) for n in range(3)])
    for seed in range(100):
        found = EAGER.decide(ask(4000, seed=seed), world)
        assert not found.explored
        assert found.propensity_plan == 1.0


def test_each_of_several_plans_of_a_mode_is_as_likely_as_it_says() -> None:
    world = cluster([worker(Role.COLOCATED, f"c{n}") for n in range(5)])
    drawn = [EAGER.decide(ask(500, seed=seed), world) for seed in range(2000)]
    likely = {found.plan.key: found.propensity_plan for found in drawn}
    assert sorted(likely.values()) == pytest.approx([0.125] * 4 + [0.5])
    for key, chance in likely.items():
        share = sum(found.plan.key == key for found in drawn) / len(drawn)
        assert share == pytest.approx(chance, abs=0.05)


@given(world=clusters(), request=requests, part=st.sampled_from([0.3, 0.999]), place=st.integers(0, 99))
def test_whatever_was_chosen_the_budget_is_above_the_lowest_score(
    world: Cluster, request: Request, part: float, place: int
) -> None:
    """A safe rule may have chosen a plan that is not the best: what is explored is no worse for that."""
    try:
        evaluation = Evaluation.of(request, world)
    except NoPlanError:
        return
    usable = np.flatnonzero(evaluation.usable)
    row = int(usable[place % len(usable)])
    budget = part * float(np.ptp(evaluation.ranked[usable]))
    chances = Exploration(0.5, budget, 1e9).chances(evaluation, row)
    other = np.flatnonzero(chances)
    other = other[other != row]
    assert (evaluation.ranked[other] < evaluation.ranked.min() + budget).all()
    assert evaluation.prediction.fits[other].all()


@pytest.mark.parametrize("bad", [{"explore": 0.6}, {"explore": -0.1}, {"explore_budget": -1.0}])
def test_figures_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="explore"):
        ExpectedLoss(**bad)


def test_baselines_do_not_explore_and_a_spec_comes_first() -> None:
    assert make("coin(0.5)", explore=0.1) == make("coin(0.5)")
    assert make("kvferry", explore=0.1) == ExpectedLoss(explore=0.1)
    assert make("kvferry(2048, 5, 0.001, 0.25)", explore=0.1) == ExpectedLoss(explore=0.25)
    assert Exploration(0.1, 0.02, 0.0) == ExpectedLoss(explore=0.1).exploration
