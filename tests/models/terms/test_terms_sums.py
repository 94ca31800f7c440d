"""Evidence adds up: whoever took which samples, in whatever order they are put together."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.models.terms.evidence import MOST, Sums, length

HALF_LIFE_S = 100.0
small = st.floats(-50.0, 50.0)
times = st.floats(0.0, 1000.0)
samples = st.lists(
    st.tuples(st.tuples(small, small, small), small, st.floats(0.0, 10.0), st.floats(0.0, 1.0), times),
    max_size=6,
)


def total(taken: list[tuple[tuple[float, ...], float, float, float, float]]) -> Sums:
    sums = Sums.none(3)
    for x, y, weight, count, time_s in taken:
        sums = sums.plus(Sums.of(x, y, weight, count, time_s), HALF_LIFE_S)
    return sums


def alike(one: Sums, other: Sums) -> bool:
    return one.values == pytest.approx(other.values, rel=1e-9, abs=1e-6)


@settings(max_examples=40)
@given(samples, samples, samples)
def test_neither_order_nor_grouping_matters(a: list, b: list, c: list) -> None:
    one, two, three = total(a), total(b), total(c)
    assert alike(one.plus(two, HALF_LIFE_S), two.plus(one, HALF_LIFE_S))
    left = one.plus(two, HALF_LIFE_S).plus(three, HALF_LIFE_S)
    right = one.plus(two.plus(three, HALF_LIFE_S), HALF_LIFE_S)
    assert alike(left, right)


@settings(max_examples=60)
@given(samples, st.integers(1, 5), st.integers(0, 1 << 30))
def test_routers_that_share_the_samples_know_what_one_would(taken: list, routers: int, seed: int) -> None:
    rng = random.Random(seed)
    parts: list[list] = [[] for _ in range(routers)]
    for sample in taken:
        rng.choice(parts).append(sample)
    rng.shuffle(parts)
    together = Sums.none(3)
    for part in parts:
        together = together.plus(total(part), HALF_LIFE_S)
    alone = total(sorted(taken, key=lambda sample: sample[-1]))
    assert alike(together, alone)


def test_what_is_older_weighs_less_and_the_future_is_now() -> None:
    sums = Sums.of((1.0, 2.0), 3.0, 1.0, 1.0, 100.0)
    assert sums.faded(100.0 + HALF_LIFE_S, HALF_LIFE_S).values == tuple(0.5 * one for one in sums.values)
    assert sums.faded(0.0, HALF_LIFE_S) == sums
    assert sums.count == 1.0


@pytest.mark.parametrize(
    "values",
    [
        [1.0] * (length(2) + 1),
        [],
        [float("nan")] + [0.0] * (length(2) - 1),
        [0.0] * (length(2) - 1) + [float("inf")],
        [0.0] * (length(2) - 1) + [2 * MOST],
        [-1.0] + [0.0] * (length(2) - 1),
        [0.0] * (length(2) - 1) + [-1.0],
    ],
)
def test_what_cannot_be_sums_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"sum|count"):
        Sums.checked(2, values, 0.0)
    with pytest.raises(ValueError, match="finite"):
        Sums.checked(2, [0.0] * length(2), float("nan"))
