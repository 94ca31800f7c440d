"""The KV memory of one engine: what goes in comes out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.simulator.job import Job
from kvferry.models.simulator.kv_room import KVRoom

BLOCK = 10


def job_of(prompt: int, family: int) -> Job:
    """Prompts of one family begin alike, for as long as both are."""
    return Job(0, prompt, 5, [100 * family + place for place in range(prompt // BLOCK)])


STEP = st.one_of(
    st.tuples(st.just("admit"), st.integers(1, 60), st.integers(0, 2)),
    st.tuples(st.just("keep"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("free"), st.integers(0, 9), st.just(0)),
)


@given(st.booleans(), st.integers(0, 20), st.lists(STEP, max_size=50))
def test_kv_in_is_kv_out_and_never_more_than_there_is(
    caches: bool, reserve: int, steps: list[tuple[str, int, int]]
) -> None:
    room = KVRoom(120, BLOCK, caches)
    inside: list[Job] = []
    for what, first, second in steps:
        if what == "admit":
            job = job_of(first, second)
            had = room.room_tokens
            used = room.used_tokens
            let_in = room.admit(job, reserve)
            if let_in:
                inside.append(job)
                assert had - room.room_tokens == room.used_tokens - used <= first
                assert room.room_tokens >= reserve
                assert job.cached_tokens == job.computed_tokens < first
            else:
                assert (room.room_tokens, room.used_tokens) == (had, used)
                assert had < first + reserve
        elif inside and what == "keep":
            room.keep(inside[first % len(inside)])
        elif inside:
            room.free(inside.pop(first % len(inside)))
        assert room.private_tokens == sum(job.private_tokens for job in inside)
        assert all(job.private_tokens >= 0 for job in inside)
        assert room.private_tokens + room.cache.tokens <= room.capacity_tokens
        assert room.used_tokens + room.room_tokens == room.capacity_tokens
        in_use = {block for job in inside for block in job.locked}
        assert room.used_tokens == room.private_tokens + BLOCK * len(in_use)
    for job in inside:
        room.free(job)
    assert room.used_tokens == room.private_tokens == 0
    assert room.room_tokens == room.capacity_tokens


def test_a_prompt_finds_what_another_left_and_computes_at_least_one_token() -> None:
    room = KVRoom(100, BLOCK, caches=True)
    first = job_of(40, 0)
    assert room.admit(first, 0)
    assert first.cached_tokens == 0
    room.keep(first)
    room.free(first)
    again, longer = job_of(40, 0), job_of(55, 0)
    assert room.admit(again, 0)
    assert again.computed_tokens == 39
    assert room.admit(longer, 0)
    assert longer.computed_tokens == 40
    assert room.used_tokens == 55


def test_two_that_computed_the_same_at_once_share_it_afterwards() -> None:
    room = KVRoom(100, BLOCK, caches=True)
    pair = [job_of(35, 0), job_of(35, 0)]
    assert all(room.admit(job, 0) for job in pair)
    assert room.used_tokens == 70
    for job in pair:
        room.keep(job)
    assert room.used_tokens == 40


def test_idle_blocks_give_way_and_no_more_can_be_taken() -> None:
    room = KVRoom(50, BLOCK, caches=True)
    job = job_of(30, 0)
    room.admit(job, 0)
    room.keep(job)
    room.free(job)
    room.take(25)
    assert room.cache.tokens == 20
    assert room.cache.match(job.blocks) == 2
    with pytest.raises(ValueError, match="are left"):
        room.take(26)
