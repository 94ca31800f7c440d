"""Prefix hashes, and what a worker is believed to hold."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.prefix import BLOCK_BYTES, BLOCK_TOKENS, MIN_CAPACITY, PrefixIndex, block_hashes

ids = st.lists(st.integers(0, 3), max_size=6 * BLOCK_TOKENS)
texts = st.binary(max_size=6 * BLOCK_BYTES)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


@given(ids, ids, st.integers(0, 6 * BLOCK_TOKENS))
def test_token_blocks_are_equal_exactly_as_far_as_the_prompts(
    one: list[int], tail: list[int], at: int
) -> None:
    other = one[:at] + tail
    shared = common(one, other) // BLOCK_TOKENS
    assert common(block_hashes(one), block_hashes(other)) == shared


@given(texts, texts, st.integers(0, 6 * BLOCK_BYTES))
def test_byte_blocks_are_equal_exactly_as_far_as_the_prompts(one: bytes, tail: bytes, at: int) -> None:
    other = one[:at] + tail
    assert common(block_hashes(one), block_hashes(other)) == common(one, other) // BLOCK_BYTES


def test_only_full_blocks_count_and_a_block_knows_what_came_before() -> None:
    assert block_hashes(list(range(BLOCK_TOKENS - 1))) == ()
    assert len(block_hashes(list(range(3 * BLOCK_TOKENS + 1)))) == 3
    assert len(set(block_hashes([7] * 5 * BLOCK_TOKENS))) == 5
    assert block_hashes(b"") == block_hashes([]) == ()


@given(st.binary(min_size=1, max_size=16))
def test_ids_and_bytes_never_match(pattern: bytes) -> None:
    values = list(pattern * (2 * BLOCK_BYTES))
    assert not set(block_hashes(values)) & set(block_hashes(bytes(values)))
    packed = b"".join(value.to_bytes(8, "little") for value in values)
    assert not set(block_hashes(values)) & set(block_hashes(packed))


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=20),
    st.lists(st.integers(0, 30), max_size=20),
)
def test_held_counts_leading_blocks_only(prompts: list[list[int]], asked: list[int]) -> None:
    index = PrefixIndex(1000)
    for prompt in prompts:
        index.add(prompt)
    known = {block for prompt in prompts for block in prompt}
    held = index.held(asked)
    assert all(block in known for block in asked[:held])
    assert held == len(asked) or asked[held] not in known
    for prompt in prompts:
        assert index.held(prompt) == len(prompt)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_it_never_grows_beyond_the_workers_room(starts: list[int]) -> None:
    index = PrefixIndex(100)
    for start in starts:
        index.add(range(start, start + 40))
        assert len(index) <= 100
        assert index.held(range(start, start + 40)) == 40


def test_the_least_recently_used_goes_first_and_an_end_before_its_beginning() -> None:
    index = PrefixIndex(100)
    index.add(range(60))
    index.add(range(1000, 1030))
    index.add(range(60))
    index.add(range(2000, 2030))
    assert index.held(range(60)) == 60
    assert index.held(range(2000, 2030)) == 30
    assert index.held(range(1000, 1030)) == 10
    index.add(range(3000, 3050))
    assert 0 < index.held(range(60)) < 60


def test_a_smaller_hit_than_expected_shrinks_the_belief_and_good_ones_regrow_it() -> None:
    index = PrefixIndex(1000)
    index.add(range(1000))
    index.correct(expected_blocks=10, reported_blocks=3)
    assert len(index) == 900
    index.correct(10, 3)
    assert len(index) == 810
    index.correct(0, 0)
    index.add(range(5000, 6000))
    assert len(index) == 810
    for _ in range(500):
        index.correct(10, 10)
    index.add(range(7000, 9000))
    assert len(index) == 1000
    for _ in range(500):
        index.correct(10, 0)
    assert len(index) == MIN_CAPACITY
    index.clear()
    assert len(index) == index.held([7000]) == 0
