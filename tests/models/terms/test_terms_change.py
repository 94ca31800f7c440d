"""One outlier is none, a change is one soon."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.terms.change import CLIP, LATE, SOON, Change


@given(st.floats(), st.lists(st.floats(-1.0, 1.0), max_size=30), st.integers(0, 29))
def test_one_outlier_never_counts_as_a_change(outlier: float, others: list[float], place: int) -> None:
    change = Change()
    for z in (*others[:place], outlier, *others[place:]):
        assert not change.seen(z)


@pytest.mark.parametrize("z", [3.0, 9.0, 1e9, math.inf, -3.0, -9.0])
def test_samples_that_agree_are_a_change_within_ten(z: float) -> None:
    change = Change()
    assert any(change.seen(z) for _ in range(10)) == math.isfinite(z)


def test_noise_is_hardly_ever_taken_for_one() -> None:
    rng, change = random.Random(5), Change()
    assert sum(change.seen(rng.gauss(0.0, 1.0)) for _ in range(20_000)) <= 2


def test_it_starts_anew_and_is_as_late_as_it_is_told() -> None:
    change = Change(up_limit=LATE)
    late = next(count for count in range(1, 1000) if change.seen(CLIP))
    assert late == LATE / (CLIP - 1.0) + 1
    assert change.up == change.down == 0.0
    soon = next(count for count in range(1, 1000) if change.seen(-CLIP))
    assert soon == SOON / (CLIP - 1.0) + 1
