"""Scattered or staged, by predicted cost."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.moves.choose import Form, PathCost, choose
from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.place import Place
from kvferry.models.moves.plan import plan
from kvferry.models.moves.pool_spec import PoolSpec

# facts: Mooncake over TCP and NIXL over CMA, gather 6.5 ms and scatter 24 ms for 64 MiB
MOONCAKE = PathCost(51e-6, 0.581e-9, 24.7e-6, 6.5e-3 / 2**26, 24e-3 / 2**26, 1e-4)
NIXL = PathCost(14e-6, 0.085e-9, 3.7e-6, 6.5e-3 / 2**26, 24e-3 / 2**26, 1e-4)


def _move(block_bytes, blocks=64, **dst):
    """Every other page, so that no blocks join; one layer."""
    pool = PoolSpec(1, 1, block_bytes // 2, pages=2 * blocks, page_size=1, dtype="bf16")
    even = Place.of(range(0, 2 * blocks, 2))
    (move,) = plan([pool], even, [replace(pool, **dst)], even, blocks)
    return move


def test_crossover_is_where_the_facts_saw_it():
    assert 32 << 10 < MOONCAKE.crossover_bytes < 64 << 10
    assert 4 << 10 < NIXL.crossover_bytes < 16 << 10
    assert math.isinf(replace(NIXL, gather_s_per_byte=0.0, scatter_s_per_byte=0.0).crossover_bytes)


@pytest.mark.parametrize("cost", [MOONCAKE, NIXL])
def test_blocks_below_the_crossover_are_staged(cost):
    for factor, form in ((1 / 4, Form.STAGED), (4, Form.SCATTERED)):
        move = _move(int(cost.crossover_bytes * factor) // 2 * 2)
        choice = choose(move, move.pieces(), cost)
        assert choice.form is form
        assert choice.descriptors == 128


def test_predictions_are_the_formulas():
    move = _move(1024, blocks=1000)
    pieces = move.pieces()
    choice = choose(move, pieces, NIXL)
    size = 2000 * 1024
    assert choice.scattered_s == pytest.approx(2 * 14e-6 + 0.085e-9 * size + 3.7e-6 * 2000)
    around = (NIXL.gather_s_per_byte + NIXL.scatter_s_per_byte) * size
    assert choice.staged_s == pytest.approx(14e-6 + 3.7e-6 + 1e-4 + 0.085e-9 * size + around)
    assert choice.predicted_s == min(choice.scattered_s, choice.staged_s)


def test_a_small_buffer_is_filled_several_times_or_is_no_use():
    pool = PoolSpec(5, 1, 8, pages=4, page_size=4, dtype="bf16")
    (move,) = plan([pool], Place.of([0]), [replace(pool, dtype="fp8")], Place.of([0]), 4)
    layer = pool.block_bytes  # K and V in fp8, a byte an element
    all_at_once = choose(move, None, NIXL)
    three = choose(move, None, NIXL, buffer_bytes=2 * layer + 1)
    halves = choose(move, None, NIXL, buffer_bytes=layer - 1)
    assert [each.portions for each in (all_at_once, three, halves)] == [1, 3, 10]
    assert three.staged_s - all_at_once.staged_s == pytest.approx(2 * (14e-6 + 3.7e-6 + 1e-4))
    assert halves.staged_s - all_at_once.staged_s == pytest.approx(9 * (14e-6 + 3.7e-6 + 1e-4))
    assert three.form is halves.form is Form.STAGED
    with pytest.raises(Impossible, match="bfloat16 to fp8_e4m3 needs a staging buffer"):
        choose(move, None, NIXL, buffer_bytes=layer // 4 - 1)
    (same,) = plan([pool], Place.of([0]), [pool], Place.of([0]), 4)
    scattered = choose(same, same.pieces(), NIXL, buffer_bytes=layer // 2 - 1)
    assert (scattered.form, scattered.portions) == (Form.SCATTERED, 0)


@given(
    block=st.integers(1, 1 << 16),
    gamma=st.floats(0, 1e-4),
    around=st.floats(1e-12, 1e-8),
    ack=st.floats(0, 1e-3),
)
def test_whichever_is_predicted_faster(block, gamma, around, ack):
    cost = PathCost(1e-5, 1e-10, gamma, around / 2, around / 2, ack)
    move = _move(2 * block, blocks=8)
    choice = choose(move, move.pieces(), cost)
    assert (choice.form is Form.STAGED) == (choice.staged_s < choice.scattered_s)
    if 2 * block > cost.crossover_bytes:
        assert choice.form is Form.SCATTERED
