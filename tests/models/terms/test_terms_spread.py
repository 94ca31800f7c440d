"""Nine of ten outcomes are under the 90th percentile, whatever it was said to be at first."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.terms.spread import LEAST, MOST, Spread


@pytest.mark.parametrize("predicted", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_coverage_settles_at_nine_in_ten(predicted: float, sigma: float) -> None:
    rng, spread, under = random.Random(f"{predicted}/{sigma}"), Spread(), 0
    for count in range(1200):
        p90, actual = predicted * math.exp(spread.wide), rng.lognormvariate(0.0, sigma)
        spread.observe(actual, p90)
        under += count >= 200 and actual <= p90
    assert under / 1000 == pytest.approx(0.9, abs=0.03)
    assert spread.count == 1200


times = st.one_of(st.none(), st.floats())


@given(st.lists(st.tuples(times, times)))
def test_whatever_is_said_it_is_bounded(told: list[tuple[float | None, float | None]]) -> None:
    spread = Spread()
    for actual, p90 in told:
        spread.observe(actual, p90)
        assert LEAST <= spread.wide <= MOST
        assert 0.0 <= spread.inside <= 1.0
