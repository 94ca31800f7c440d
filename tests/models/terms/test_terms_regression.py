"""Posteriors of small regressions: against the textbook, and within their bounds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvferry.models.terms.regression import HUBER, NOISE, ODD, Belief, doubt, pull, solve

FREE = np.full((1, 2), -np.inf)


def test_without_bounds_it_is_the_textbooks_posterior() -> None:
    rng = np.random.default_rng(3)
    x, truth = rng.normal(size=(50, 2)), np.array((1.5, -0.5))
    y = x @ truth + rng.normal(size=50) * 0.1
    prior, gram, moment = np.eye(2)[None], (x.T @ x / 0.01)[None], (x.T @ y / 0.01)[None]
    mean, covariance = solve(prior, gram, moment, FREE)
    assert mean[0] == pytest.approx(np.linalg.inv(np.eye(2) + x.T @ x / 0.01) @ (x.T @ y / 0.01))
    assert mean[0] == pytest.approx(truth, abs=0.06)
    belief = Belief(mean[0], covariance[0])
    value, sd = belief.predict(np.array((1.0, 2.0)))
    assert value == pytest.approx(0.5, abs=0.1)
    assert 0.0 < sd < 0.1
    assert Belief(mean[0], np.eye(2)).predict(np.array((3.0, 4.0)))[1] == pytest.approx(5.0)


samples = hnp.arrays(np.float64, (6, 3), elements=st.floats(-3, 3))


@given(samples, hnp.arrays(np.float64, (6,), elements=st.floats(-9, 9)), st.floats(-1, 1))
def test_bounds_hold_and_nothing_within_them_is_likelier(x: np.ndarray, y: np.ndarray, low: float) -> None:
    bound = np.array([[low, -1.0, 0.0]])
    whole, moment = np.eye(3) + x.T @ x, x.T @ y
    mean, _ = solve(np.eye(3)[None], (x.T @ x)[None], moment[None], bound)
    assert (mean >= bound).all()
    gradient = whole @ mean[0] - moment
    inside = mean[0] > bound[0] + 1e-9
    scale = 1e-7 * (1.0 + np.abs(moment).max() + np.abs(whole).max())
    assert np.abs(gradient[inside]).max(initial=0.0) <= scale


def test_ten_times_as_much_is_as_odd_as_a_tenth() -> None:
    up, _ = doubt(10.0, 1.0, 0.0, 0.0)
    down, _ = doubt(0.1, 1.0, 0.0, 0.0)
    assert up == pytest.approx(-down)
    assert up > ODD
    assert doubt(1.2, 1.0, 0.0, 0.0)[0] == pytest.approx(1.0, rel=0.2)
    assert abs(doubt(3e-3, 1e-3, 0.0, 1e-3)[0]) < 2.0  # milliseconds are no evidence
    assert abs(doubt(10.0, 1.0, 9.0, 0.0)[0]) < 1.1  # nor is what was not known before
    assert NOISE < 1.0


@given(st.floats(-1e6, 1e6), st.booleans())
def test_the_pull_of_a_sample_does_not_grow_with_its_oddity(z: float, settled: bool) -> None:
    believed = pull(z, settled=settled)
    assert 0.0 <= believed <= 1.0
    assert believed * abs(z) <= HUBER + 1e-9
    assert math.copysign(1.0, believed) == 1.0
