"""The sequential test rolls back seldom without cause, though it looks after every request, and soon with."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.offpolicy.sequential import Arm, is_worse, log_evidence

ALPHA = 0.05


def first_alarm(
    rng: np.random.Generator, share_a: float, rate_a: object, rate_b: object, most: int
) -> int | None:
    """After how many requests `a` is called worse; None: never."""
    in_a = rng.random(most) < share_a
    missed = rng.random(most) < np.where(in_a, rate_a, rate_b)
    counts = [(in_a & ~missed).cumsum(), (in_a & missed).cumsum(), (~in_a & missed).cumsum()]
    for seen, (met_a, missed_a, missed_b) in enumerate(zip(*(c.tolist() for c in counts), strict=True), 1):
        of_a = met_a + missed_a
        a, b = Arm(of_a, missed_a, share_a), Arm(seen - of_a, missed_b, 1.0 - share_a)
        if is_worse([(a, b)], ALPHA):
            return seen
    return None


@pytest.mark.parametrize("share", [0.5, 0.05])
@pytest.mark.parametrize("drifting", [False, True], ids=["steady", "drifting"])
def test_arms_that_are_alike_are_seldom_told_apart(share: float, drifting: bool) -> None:
    rng, runs, most = np.random.default_rng(7), 40, 500
    day = 0.5 - 0.45 * np.cos(np.arange(most) / 100.0) if drifting else np.full(most, 0.2)
    alarms = sum(first_alarm(rng, share, day, day, most) is not None for _ in range(runs))
    # of 40 runs 2 may: more than 6 are seen with probability 0.004
    assert alarms <= 6


def test_a_better_arm_is_never_called_worse() -> None:
    rng = np.random.default_rng(8)
    assert all(first_alarm(rng, 0.3, 0.1, 0.3, 500) is None for _ in range(20))


@pytest.mark.parametrize(
    ("share", "rate_a", "rate_b", "within"),
    [(0.5, 0.30, 0.05, 400), (0.5, 0.95, 0.40, 400), (0.2, 0.30, 0.02, 600), (0.05, 0.5, 0.02, 1200)],
)
def test_a_clear_regression_is_found_within_hundreds_of_requests(
    share: float, rate_a: float, rate_b: float, within: int
) -> None:
    rng = np.random.default_rng(9)
    found = [first_alarm(rng, share, rate_a, rate_b, within) for _ in range(40)]
    assert sum(seen is not None for seen in found) >= 36


arms = st.builds(
    lambda met, missed, share: Arm(met + missed, missed, share),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.floats(0.001, 1.0),
)


@given(arms, arms)
def test_evidence_is_finite_and_grows_with_misses(a: Arm, b: Arm) -> None:
    before = log_evidence([(a, b)])
    assert math.isfinite(before)
    after = log_evidence([(Arm(a.requests + 1, a.missed + 1, a.share), b)])
    other = log_evidence([(a, Arm(b.requests + 1, b.missed + 1, b.share))])
    assert other <= before + 1e-9 <= after + 2e-9


@given(arms, arms)
def test_what_is_counted_in_parts_is_as_good_as_in_one(a: Arm, b: Arm) -> None:
    b = Arm(b.requests, b.missed, 1.0)
    half = [Arm(x.requests // 2, x.missed // 2, x.share) for x in (a, b)]
    rest = [
        Arm(x.requests - h.requests, x.missed - h.missed, x.share) for x, h in zip((a, b), half, strict=True)
    ]
    whole = log_evidence([(a, b)])
    parts = log_evidence([(half[0], half[1]), (rest[0], rest[1])])
    assert parts == pytest.approx(whole, rel=1e-9, abs=1e-6)


def test_an_arm_without_a_share_says_nothing() -> None:
    assert log_evidence([(Arm(100, 100, 0.0), Arm(100, 0, 1.0))]) == 0.0
    assert log_evidence([]) == 0.0
