"""Predictions that a learned model corrects: rising where it knows a plan, the structured ones elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import ask, busy, cluster, clusters, requests, trio

from kvferry.policy import base
from kvferry.policy.candidates import Floats
from kvferry.policy.cluster import Cluster
from kvferry.policy.corrected import predicted
from kvferry.policy.correction import QUANTILES, TARGETS, TERMS, Correction
from kvferry.policy.costs import Costs, Estimate
from kvferry.policy.decision import STRUCTURED, Decision, NoPlanError
from kvferry.policy.evaluation import Evaluation
from kvferry.policy.features import EPSILON_S, FEATURES
from kvferry.policy.plan import Colocated, Mode
from kvferry.policy.predict import ITL, predict
from kvferry.policy.request import Request

TTFT, SPLIT = FEATURES.index("log_ttft_s"), FEATURES.index("split")
some = settings(max_examples=40)
policies = st.sampled_from([base.make(name) for name in base.names()])


@dataclass
class Fixed:
    """Says the same of every plan but those of a mode that it does not know."""

    ttft: float = 0.0
    itl: float = 0.0
    rise: float = 0.1
    unknown: float | None = None  # the `split` feature of plans it was not trained on
    terms: float = np.nan
    version: str = "m-fixed"

    def correct(self, features: Floats) -> Correction:
        plans = features.shape[1]
        ttft, itl = np.full(plans, self.ttft), np.full(plans, self.itl)
        inside = features[SPLIT] != (self.unknown if self.unknown is not None else -1.0)

        def quantiles(rows: Sequence[int]) -> Floats:
            found = np.full((len(TARGETS), len(QUANTILES), len(rows)), self.terms)
            found[0], found[1] = ttft[list(rows)], itl[list(rows)]
            return found + self.rise * np.arange(3)[:, None]

        return Correction(
            ttft, itl, inside, bool(inside.all()), quantiles, lambda row: f"split {features[SPLIT, row]:g}"
        )


def decided(policy: base.Policy, request: Request, world: Cluster) -> Decision | NoPlanError:
    try:
        return policy.decide(request, world)
    except NoPlanError as refusal:
        return refusal


def costs(world: Cluster, request: Request, row: int) -> Costs:
    evaluation = Evaluation.of(request, world)
    return evaluation.costs_of([row], evaluation.scores.both)[0]


def terms(found: Costs) -> dict[str, Estimate]:
    return {name: getattr(found, f"{name}_s") for name in TARGETS}


@some
@given(policies, clusters(), requests)
def test_a_model_that_corrects_nothing_changes_no_decision(
    policy: base.Policy, world: Cluster, request: Request
) -> None:
    before, after = (
        decided(policy, request, world),
        decided(policy, request, replace(world, corrector=Fixed())),
    )
    if isinstance(before, NoPlanError) or isinstance(after, NoPlanError):
        assert type(before) is type(after)
        return
    assert (before.plan, before.reason, before.propensity_plan) == (
        after.plan,
        after.reason,
        after.propensity_plan,
    )
    assert (before.model_version, after.model_version) == (STRUCTURED, "m-fixed")
    assert after.costs.features == before.costs.features
    assert after.costs.fallback == ""
    assert after.costs.structured_ttft_s == before.costs.ttft_s.p50


@some
@given(clusters(), requests, st.floats(-3, 3), st.floats(-3, 3))
def test_medians_are_the_structured_ones_times_what_it_says(
    world: Cluster, request: Request, ttft: float, itl: float
) -> None:
    if not world.candidates.plans:
        return
    before = predict(request, world)
    after = predicted(request, replace(world, corrector=Fixed(ttft, itl)))
    assert after.ttft_s == pytest.approx(before.ttft_s * np.exp(ttft))
    assert after.terms[ITL] == pytest.approx(before.terms[ITL] * np.exp(itl))
    assert after.terms[:ITL] == pytest.approx(before.terms[:ITL])
    assert (after.structured_ttft_s == before.ttft_s[0]).all()
    assert after.features is not None
    assert np.exp(after.features[TTFT]) == pytest.approx(before.ttft_s[0] + EPSILON_S)


@some
@given(clusters(), requests, st.floats(-3, 3), st.floats(0, 2), st.floats(-9, 9), st.floats(-0.5, 0.5))
def test_what_is_told_rises_and_starts_at_what_was_decided_with(
    world: Cluster, request: Request, log: float, rise: float, terms_log: float, wide: float
) -> None:
    wides = {"ttft_wide": np.full(2, wide), "itl_wide": np.full(2, wide), "transfer_wide": np.full(1, wide)}
    state = replace(world.state, **wides)
    world = replace(world, state=state, corrector=Fixed(log, log, rise, terms=terms_log))
    for row in range(min(3, len(world.candidates.plans))):
        found = costs(world, request, row)
        for name, estimate in terms(found).items():
            assert 0.0 <= estimate.p50 <= estimate.p90 <= estimate.p99, name
        told = predicted(request, world)
        assert found.ttft_s.p50 == pytest.approx(told.ttft_s[0, row])
        assert found.itl_s.p50 == pytest.approx(told.terms[ITL, row])
        assert found.ttft_s.p90 == pytest.approx(found.ttft_s.p50 * np.exp(max(0.0, rise + wide)))
        moved = found.transfer_s
        if moved.p50 > 0.0:
            expected = (moved.p50 + EPSILON_S) * np.exp(max(0.0, rise + wide)) - EPSILON_S
            assert moved.p90 == pytest.approx(expected)


@some
@given(clusters(), requests)
def test_terms_it_knows_nothing_of_stay_as_they_were(world: Cluster, request: Request) -> None:
    for row in range(min(3, len(world.candidates.plans))):
        before, after = (costs(each, request, row) for each in (world, replace(world, corrector=Fixed(0.5))))
        assert {name: getattr(after, f"{name}_s") for name in TERMS} == {
            name: getattr(before, f"{name}_s") for name in TERMS
        }


@some
@given(clusters(), requests, st.sampled_from([0.0, 1.0]))
def test_plans_it_does_not_know_are_as_without_it(world: Cluster, request: Request, unknown: float) -> None:
    if not world.candidates.plans:
        return
    learned = replace(world, corrector=Fixed(0.7, -0.4, unknown=unknown, terms=0.3))
    before, after = predict(request, world), predicted(request, learned)
    outside = world.candidates.split == bool(unknown)
    assert (after.ttft_s[:, outside] == before.ttft_s[:, outside]).all()
    assert (after.terms[:, outside] == before.terms[:, outside]).all()
    for row in range(min(4, len(world.candidates.plans))):
        found, plain = costs(learned, request, row), costs(world, request, row)
        if outside[row]:
            assert terms(found) == terms(plain)
            assert found.fallback == f"split {unknown:g}"
        else:
            assert found.fallback == ""
            assert found.ttft_s.p50 == pytest.approx(plain.ttft_s.p50 * np.exp(0.7))


def test_a_term_predicted_as_nothing_can_be_corrected() -> None:
    world = replace(cluster(trio()), corrector=Fixed(terms=3.0, rise=0.0))
    row = world.candidates.keys.index(Colocated("colocated").key)
    assert costs(cluster(trio()), ask(), row).queue_s.p50 == 0.0
    assert costs(world, ask(), row).queue_s.p50 == pytest.approx(EPSILON_S * (np.exp(3.0) - 1.0))


@dataclass
class SplitsAreSlow(Fixed):
    """Has seen that of split requests everything takes e^3 times as long."""

    def correct(self, features: Floats) -> Correction:
        slow = 3.0 * features[SPLIT]
        return replace(super().correct(features), ttft=slow, itl=slow)


def test_what_was_learned_decides_and_is_named() -> None:
    world = cluster(trio(load=busy(2, prefill_tokens=60_000)))
    policy, request = base.make("kvferry"), ask(8000)
    assert policy.decide(request, world).mode is Mode.SPLIT
    decision = policy.decide(request, replace(world, corrector=SplitsAreSlow()))
    assert decision.mode is Mode.COLOCATED
    assert decision.model_version == "m-fixed"
    outside = policy.decide(request, replace(world, corrector=SplitsAreSlow(unknown=1.0)))
    assert outside.mode is Mode.SPLIT
    assert outside.model_version == STRUCTURED
    assert outside.costs.fallback == "split 1"
