"""What fragmented pools add to descriptors."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.terms.runs import MOST_KEYS, Runs

KEY = ("a", "b", "mooncake", "direct", "tcp")
MORE = st.floats(0.0, 1e6)
BYTES = st.floats(1.0, 1e12)


@given(st.lists(st.tuples(MORE, BYTES), min_size=1, max_size=50))
def test_it_lies_between_the_least_and_the_most_that_moves_showed(moves: list[tuple[float, float]]) -> None:
    runs = Runs()
    for more, moved_bytes in moves:
        runs.seen(KEY, more, moved_bytes)
    shown = [more / moved_bytes for more, moved_bytes in moves]
    assert min(shown) * (1 - 1e-9) <= runs.more_per_byte(KEY) <= max(shown) * (1 + 1e-9)


def test_a_pool_that_was_emptied_is_whole_again_after_some_moves() -> None:
    runs = Runs()
    for _ in range(200):
        runs.seen(KEY, 100.0, 1e6)
    assert runs.more_per_byte(KEY) == pytest.approx(1e-4)
    for _ in range(60):
        runs.seen(KEY, 0.0, 1e6)
    assert runs.more_per_byte(KEY) < 1e-5


def test_an_unseen_link_and_one_with_nonsense_have_none_beyond() -> None:
    runs = Runs()
    for more, moved_bytes in ((1.0, 0.0), (1.0, -1.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan)):
        runs.seen(KEY, more, moved_bytes)
    runs.seen(KEY, -50.0, 1e6)
    assert runs.more_per_byte(KEY) == 0.0
    assert runs.more_per_byte(("c", "d")) == 0.0


def test_links_that_are_long_gone_make_room() -> None:
    runs = Runs()
    for place in range(MOST_KEYS + 10):
        runs.seen((str(place),), 1.0, 1.0)
    assert runs.more_per_byte(("0",)) == 0.0
    assert runs.more_per_byte((str(MOST_KEYS + 9),)) == 1.0
