"""Estimators on synthetic logs whose truth is known exactly."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.offpolicy.estimators import Ratio, dr, effective_sample_size, ips, snips
from kvferry.models.offpolicy.interval import Interval, interval
from kvferry.models.offpolicy.logged import MEASURES, SHOWN, Bools, Floats, Logged
from kvferry.models.offpolicy.outcome import outcome
from kvferry.models.offpolicy.overlap import refusal, unknown_share
from kvferry.models.offpolicy.verdict import judge

SLO_S = 0.3


def world(seed: int, count: int, share: Floats | float = 0.3, known: bool = True) -> tuple[Logged, float]:
    """A log of prompts that differ, split with probability `share`; and the true mean TTFT of splitting
    exactly those of at least 1000 tokens."""
    rng = np.random.default_rng(seed)
    tokens = rng.uniform(100, 2000, count)
    both = np.array((2e-4 * tokens, 0.15 + 0.5e-4 * tokens))  # what really happens, by mode
    chance = np.broadcast_to(share, count)
    split = rng.random(count) < chance
    noise = rng.normal(0.0, 0.02, count)
    seen = both[split.astype(int), np.arange(count)] + noise
    predicted = np.zeros((2, count, len(SHOWN)))
    for action in (0, 1):
        told = both[action] * 1.4 if known else np.full(count, 0.2)  # predictions are off
        columns = (
            told,
            np.full(count, 0.01),
            told / SLO_S,
            np.full(count, 0.2),
            np.log(tokens),
            np.ones(count),
        )
        predicted[action] = np.column_stack(columns)
    target = (tokens >= 1000).astype(float)
    logged = Logged(
        split,
        np.where(split, chance, 1.0 - chance),
        target,
        predicted,
        dict(zip(MEASURES, ((seen < SLO_S).astype(float), seen, np.full(count, 0.01)), strict=True)),
    )
    return logged, float(both[target.astype(int), np.arange(count)].sum()) / max(1, count)


def test_a_policy_that_logged_itself_gets_what_it_got() -> None:
    logged, _ = world(0, 500)
    own = replace(logged, target_split=logged.logging[1])
    value = logged.values["ttft_s"]
    for ratio in (ips(own, value), snips(own, value)):
        assert ratio.value == pytest.approx(value.mean())
    assert effective_sample_size(own.weights) == pytest.approx(500)


def test_by_hand() -> None:
    """Two rows: split with 0.5 and 4 s, colocated with 0.8 and 2 s; the target splits with 0.25."""
    shown = np.ones((2, 2, len(SHOWN)))
    values = dict.fromkeys(MEASURES, np.array((4.0, 2.0)))
    logged = Logged(np.array((True, False)), np.array((0.5, 0.8)), np.array((0.25, 0.25)), shown, values)
    value, q = values["ttft_s"], np.array(((1.0, 2.0), (3.0, 5.0)))
    np.testing.assert_allclose(logged.weights, (0.5, 0.9375))
    assert ips(logged, value).value == pytest.approx((0.5 * 4 + 0.9375 * 2) / 2)
    assert snips(logged, value).value == pytest.approx((0.5 * 4 + 0.9375 * 2) / 1.4375)
    first = 0.75 * 1 + 0.25 * 3 + 0.5 * (4 - 3)
    second = 0.75 * 2 + 0.25 * 5 + 0.9375 * (2 - 2)
    assert dr(logged, value, q).value == pytest.approx((first + second) / 2)
    assert effective_sample_size(logged.weights) == pytest.approx(1.4375**2 / (0.25 + 0.9375**2))


@pytest.mark.parametrize("known", [True, False])
def test_intervals_hold_the_truth_and_dr_is_nearest(known: bool) -> None:
    held, errors = np.zeros(3), np.zeros(3)
    for seed in range(100):
        logged, truth = world(seed, 400, known=known)
        value = logged.values["ttft_s"]
        q = outcome(logged, value, "ttft_s", block=7)
        for place, ratio in enumerate((ips(logged, value), snips(logged, value), dr(logged, value, q))):
            found = interval(ratio, seed=seed, draws=300)
            held[place] += found.low <= truth <= found.high
            errors[place] += (found.value - truth) ** 2
    assert (held >= 88).all(), held  # of 100, at 95%
    assert errors[2] < 0.2 * errors[0]
    assert errors[2] < errors[1]


def test_dr_stands_though_its_model_is_nonsense() -> None:
    """What makes it doubly robust: propensities are exact."""
    found = []
    for seed in range(60):
        logged, truth = world(seed, 600)
        nonsense = np.full((2, 600), 0.7)
        found.append(dr(logged, logged.values["ttft_s"], nonsense).value - truth)
    assert abs(np.mean(found)) < 3 * np.std(found) / len(found) ** 0.5


def test_an_outcome_model_never_sees_the_row_it_predicts() -> None:
    logged, _ = world(3, 200)
    value = logged.values["ttft_s"]
    before = outcome(logged, value, "ttft_s", block=1)
    changed = value.copy()
    changed[17] += 100.0
    after = outcome(logged, changed, "ttft_s", block=1)
    np.testing.assert_array_equal(before[:, 17], after[:, 17])
    assert not np.allclose(before, after)


@given(seed=st.integers(0, 1000), count=st.integers(1, 300))
def test_an_interval_is_the_same_for_the_same_seed_and_holds_its_value(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    ratio = Ratio(rng.random(count), rng.random(count) + 0.1)
    found = interval(ratio, seed=seed, draws=200)
    assert found == interval(ratio, seed=seed, draws=200)
    assert found.low <= found.high
    assert np.isfinite([found.value, found.low, found.high]).all()


def test_an_interval_narrows_with_more_rows_and_is_a_point_where_nothing_varies() -> None:
    rng = np.random.default_rng(0)
    widths = []
    for count in (200, 20_000):
        found = interval(Ratio(rng.random(count), np.ones(count)))
        widths.append(found.high - found.low)
    assert widths[1] < widths[0] / 5
    flat = interval(Ratio(np.ones(100), np.ones(100)))
    assert (flat.value, flat.low, flat.high) == (1.0, 1.0, 1.0)
    none = interval(Ratio(np.zeros(0), np.zeros(0)))
    assert np.isnan([none.value, none.low, none.high]).all()


def test_an_interval_is_wider_where_requests_that_follow_each_other_are_alike() -> None:
    """As they are that met the same queue: ten of them say little more than one."""
    rng = np.random.default_rng(0)
    alike = np.repeat(rng.random(100), 10)
    widths = [found.high - found.low for found in map(of_mean, (alike, rng.permutation(alike)))]
    assert widths[0] > 2.0 * widths[1]


def of_mean(values: Floats) -> Interval:
    return interval(Ratio(values, np.ones(len(values))))


def blind(logged: Logged, rows: Bools) -> Logged:
    """The same log, as if these rows had had no other choice."""
    return replace(logged, propensity=np.where(rows, 1.0, logged.propensity))


@pytest.mark.parametrize(
    ("logged", "why"),
    [
        (world(0, 0)[0], "no decision"),
        (world(0, 400, share=1.0)[0], "would run .*% of the requests colocated, which the log never did"),
        (world(0, 400, share=0.0)[0], "requests split, which the log never did.*--explore"),
        (blind(world(0, 400)[0], np.arange(400) % 2 == 0), "no chance when they were logged"),
        (world(0, 60)[0], "log for longer, or explore more"),
    ],
    ids=["empty", "all split", "none split", "half without a choice", "too few"],
)
def test_what_cannot_be_said_is_refused_in_one_plain_line(logged: Logged, why: str) -> None:
    assert "\n" not in refusal(logged)
    verdict = judge(logged)
    assert verdict.refused == refusal(logged)
    assert not verdict.estimates
    assert re.search(why, verdict.refused)


def test_a_little_that_is_not_known_is_left_to_the_model_and_told() -> None:
    logged, truth = world(0, 2000)
    dim = blind(logged, np.arange(2000) % 50 == 0)
    verdict = judge(dim)
    assert not verdict.refused
    assert 0.0 < verdict.unknown_share == unknown_share(dim) < 0.02
    assert verdict.estimates["ttft_s"]["dr"].value == pytest.approx(truth, rel=0.05)


def test_values_nobody_knows_are_left_out_of_their_measure_alone() -> None:
    logged, _ = world(1, 800)
    holes = logged.values["itl_s"].copy()
    holes[::3] = np.nan
    none = np.full(800, np.nan)
    verdict = judge(replace(logged, values={**logged.values, "itl_s": holes}))
    assert verdict.estimates["itl_s"]["snips"].value == pytest.approx(0.01)
    verdict = judge(replace(logged, values={**logged.values, "itl_s": none}))
    assert set(verdict.estimates) == {"slo_attainment", "ttft_s"}


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (lambda logged, rng: logged.split, "100% of what ran split, and of 0% of what ran colocated"),
        (lambda logged, rng: ~logged.split | (rng.random(2000) < 0.7), "not the same requests"),
        (lambda logged, rng: np.arange(2000) == 3, "of the requests colocated|say no more of it"),
        (lambda logged, rng: np.arange(2000) < 60, "say no more of it"),
    ],
    ids=["of splits alone", "more often of colocated ones", "of one", "of few"],
)
def test_a_measure_is_not_estimated_where_what_is_known_of_it_says_too_little(known: Any, why: str) -> None:
    logged, _ = world(4, 2000)
    rows = known(logged, np.random.default_rng(0))
    ttft_s = np.where(rows, logged.values["ttft_s"], np.nan)
    verdict = judge(replace(logged, values={**logged.values, "ttft_s": ttft_s}))
    assert not verdict.refused
    assert set(verdict.estimates) == {"slo_attainment", "itl_s"}
    assert set(verdict.unmeasured) == {"ttft_s"}
    assert re.search(why, verdict.unmeasured["ttft_s"])


def test_what_is_known_may_hang_on_the_request_though_the_mode_does_as_well() -> None:
    """Long prompts are mostly split, and mostly streamed: their TTFTs are still those of their own kind."""
    rng = np.random.default_rng(0)
    share = np.where(np.arange(4000) % 2 == 0, 0.1, 0.9)
    logged, truth = world(5, 4000, share=share)
    known = rng.random(4000) < np.where(share > 0.5, 0.9, 0.3)
    assert abs(known[logged.split].mean() - known[~logged.split].mean()) > 0.3
    ttft_s = np.where(known, logged.values["ttft_s"], np.nan)
    verdict = judge(replace(logged, values={**logged.values, "ttft_s": ttft_s}))
    assert not verdict.unmeasured
    assert verdict.estimates["ttft_s"]["dr"].value == pytest.approx(truth, rel=0.05)
