"""The prefix cache's laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.simulator.cache import PrefixCache

# Prompts as walks down a tree: a block's number names the whole way to it.
WALK = st.lists(st.integers(1, 2), min_size=1, max_size=5).map(
    lambda turns: [int("".join(map(str, turns[: depth + 1]))) for depth in range(len(turns))]
)
ACTION = st.one_of(
    st.tuples(st.just("begin"), WALK), st.tuples(st.just("end"), WALK), st.tuples(st.just("evict"), WALK)
)


@given(st.lists(ACTION, max_size=40))
def test_no_block_is_there_without_those_before_it_and_none_in_use_goes(
    actions: list[tuple[str, list[int]]],
) -> None:
    cache = PrefixCache(10)
    locked: list[list[int]] = []
    for what, walk in actions:
        if what == "begin":
            found = cache.match(walk)
            before = cache.tokens
            cache.lock(walk[:found])
            new = cache.add(walk[found:])
            assert new == len(walk) - found
            assert cache.tokens == before + 10 * new
            assert cache.match(walk) == len(walk)
            locked.append(walk)
        elif what == "end" and locked:
            cache.unlock(locked.pop(len(walk) % len(locked)))
        elif what == "evict" and cache.idle_tokens:
            wanted = min(cache.idle_tokens, 10 * len(walk) - 3)
            before = cache.tokens
            cache.evict(wanted)
            assert before - cache.tokens == 10 * -(-wanted // 10)
        assert all(cache.match(held) == len(held) for held in locked)
        assert all(block < 10 or block // 10 in cache._locks for block in cache._locks)
        in_use = {block for held in locked for block in held}
        assert cache.tokens - cache.idle_tokens == 10 * len(in_use)


def test_the_least_recently_used_leaf_goes_first() -> None:
    cache = PrefixCache(1)
    for walk in ([1, 11, 111], [2, 21]):
        cache.add(walk)
        cache.unlock(walk)
    cache.lock([1, 11])
    cache.unlock([1, 11])
    gone: list[int] = []
    while cache.tokens:
        before = set(cache._locks)
        cache.evict(1)
        gone += before - set(cache._locks)
    assert gone == [111, 21, 2, 11, 1]


def test_more_than_is_idle_cannot_be_given_up() -> None:
    cache = PrefixCache(4)
    cache.add([1, 11])
    cache.add([2])
    cache.unlock([2])
    with pytest.raises(KeyError):
        cache.evict(5)
    assert cache.match([1, 11]) == 2
