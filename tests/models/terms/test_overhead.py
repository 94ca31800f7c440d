"""What passes before a prefill though nothing is ahead of it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.terms.overhead import LEAST_S, MOST_S, Overhead

number = st.floats(allow_nan=True, allow_infinity=True) | st.none()


def test_it_is_the_median_of_requests_that_waited_for_nothing() -> None:
    rng, overhead = random.Random(1), Overhead()
    overhead.observe(0.0, 0.1)
    for _ in range(300):
        overhead.observe(overhead.base_s, 0.006 * rng.lognormvariate(0.0, 0.3))
    assert overhead.base_s == pytest.approx(0.006, rel=0.3)
    settled = overhead.base_s
    overhead.observe(settled + 1.0, 5.0)
    assert overhead.base_s == settled, "a queue was in front"
    overhead.observe(settled, 50.0)
    assert overhead.base_s < 1.2 * settled, "one outlier"


@given(st.lists(st.tuples(number, number), max_size=30))
def test_whatever_it_is_told_it_stays_within_bounds(told: list[tuple[float | None, float | None]]) -> None:
    overhead = Overhead()
    for predicted_s, actual_s in told:
        overhead.observe(predicted_s, actual_s)
    assert overhead.base_s == 0.0 if not overhead.count else LEAST_S <= overhead.base_s <= MOST_S
