"""Where the calibration settles, and that nothing a worker says can spoil it."""

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.calibration import LEAST, MOST, Bias, Calibration

times = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -1.0, 1e-300, 1e300, 1e9]))


def run(factor: float, in_flight: int, requests: int, split: bool = True) -> list[float]:
    """The TTFT bias over time in a world where everything takes `factor` times as long as predicted,
    seen by a router that corrects its predictions and has always `in_flight` requests on their way."""
    calibration = Calibration()
    flying: deque[Bias] = deque()
    history = []
    for _ in range(requests):
        flying.append(calibration.bias(split=split))
        if len(flying) > in_flight:
            then = flying.popleft()
            calibration.observe(
                split=split,
                predicted_ttft_s=0.2 * math.exp(then.ttft),
                ttft_s=0.2 * factor,
                predicted_itl_s=0.01 * math.exp(then.itl),
                itl_s=0.01,
                included=then,
            )
            history.append(calibration.bias(split=split).ttft)
    return history


@pytest.mark.parametrize("in_flight", [0, 50, 1000])
@pytest.mark.parametrize("factor", [0.6, 1.0, 2.0])
def test_it_settles_at_what_predictions_lack_however_many_are_in_flight(
    factor: float, in_flight: int
) -> None:
    history = run(factor, in_flight, 4000)
    assert history[-1] == pytest.approx(math.log(factor), abs=1e-6)
    low, high = sorted((0.0, math.log(factor)))
    assert all(low - 1e-9 <= bias <= high + 1e-9 for bias in history)  # without overshooting


def test_without_a_word_of_the_bias_then_it_takes_that_of_now() -> None:
    calibration = Calibration()
    for _ in range(600):
        bias = calibration.bias(split=False).itl
        calibration.observe(
            split=False,
            predicted_ttft_s=None,
            ttft_s=None,
            predicted_itl_s=0.02 * math.exp(bias),
            itl_s=0.04,
        )
    assert calibration.itl == pytest.approx((math.log(2.0), 0.0), abs=1e-4)
    assert calibration.ttft == (0.0, 0.0)


def test_it_follows_a_world_that_changes_within_its_bounds() -> None:
    assert run(100.0, 0, 2000)[-1] == MOST
    assert run(0.01, 0, 2000)[-1] == LEAST


def test_modes_and_quantities_are_kept_apart() -> None:
    calibration = Calibration()
    calibration.observe(
        split=True, predicted_ttft_s=1.0, ttft_s=2.0, predicted_itl_s=0.02, itl_s=0.01, included=Bias()
    )
    assert calibration.bias(split=False) == Bias()
    assert calibration.bias(split=True).ttft > 0 > calibration.bias(split=True).itl
    assert calibration.ttft == (0.0, calibration.bias(split=True).ttft)


def test_one_request_that_waited_for_ever_moves_it_little() -> None:
    calibration = Calibration()
    calibration.observe(
        split=True, predicted_ttft_s=0.1, ttft_s=1e6, predicted_itl_s=None, itl_s=None, included=Bias()
    )
    assert 0.0 < calibration.bias(split=True).ttft < 0.05


@given(st.lists(st.tuples(st.booleans(), times, times, times, times, st.one_of(st.none(), st.floats()))))
def test_whatever_is_told_it_stays_finite_and_bounded(told: list[tuple[bool, ...]]) -> None:
    calibration = Calibration()
    for split, predicted_ttft_s, ttft_s, predicted_itl_s, itl_s, then in told:
        calibration.observe(
            split=split,
            predicted_ttft_s=predicted_ttft_s,
            ttft_s=ttft_s,
            predicted_itl_s=predicted_itl_s,
            itl_s=itl_s,
            included=None if then is None else Bias(then, then),
        )
    assert all(LEAST <= bias <= MOST for bias in (*calibration.ttft, *calibration.itl))


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_slower_outcome_never_lowers_it(one: float, other: float) -> None:
    def after(ttft_s: float) -> float:
        calibration = Calibration()
        calibration.observe(split=True, predicted_ttft_s=1.0, ttft_s=ttft_s, predicted_itl_s=None, itl_s=None)
        return calibration.bias(split=True).ttft

    assert after(min(one, other)) <= after(max(one, other))
