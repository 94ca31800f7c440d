"""Portions hold every token of every layer once, in order, and fit."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.moves.place import Place
from kvferry.models.moves.plan import plan
from kvferry.models.moves.pool_spec import PoolSpec
from kvferry.models.moves.portions import Portion, Portions, portions_of

POOL = PoolSpec(layers=5, heads=4, head_dim=8, pages=64, page_size=4, dtype="bf16")
TOKEN_BYTES = 2 * POOL.token_bytes
small = st.integers(1, 6)


def moves(tokens, *, src=1, first=0, **dst):
    """From `src` ranks to one, to pages from token `first` on."""
    heads = POOL.heads // src
    ranks = [replace(POOL, heads=heads, first_head=rank * heads) for rank in range(src)]
    target = replace(POOL, **dst)
    return plan(ranks, Place.of(range(64)), [target], Place.of(range(64), first), tokens)


@given(
    tokens=st.integers(1, 40),
    first=st.integers(0, 9),
    page=small,
    buffer=st.integers(TOKEN_BYTES, 60 * TOKEN_BYTES),
    most=st.none() | small,
)
def test_every_token_of_every_layer_goes_once_and_in_order(tokens, first, page, buffer, most):
    cut = portions_of(moves(tokens, first=first, page_size=page), buffer, most)
    assert cut is not None
    arrived = [0] * POOL.layers
    groups = list(cut.by_layers())
    assert sum(len(some) for some in groups) == len(cut)
    for some in groups:
        for portion in some:
            assert len(portion.layers) * portion.tokens * TOKEN_BYTES <= buffer
            assert most is None or len(portion.layers) <= most
            for layer in portion.layers:
                assert arrived[layer] == portion.first_token
                arrived[layer] += portion.tokens
    assert arrived == [tokens] * POOL.layers


@given(tokens=st.integers(2, 40), first=st.integers(0, 9), page=small, fits=st.integers(1, 39))
def test_a_layer_is_cut_between_pages_wherever_one_fits(tokens, first, page, fits):
    cut = portions_of(moves(tokens, first=first, page_size=page), fits * TOKEN_BYTES)
    assert cut is not None
    if fits < tokens:
        assert cut.layers_each == 1
        for wall in cut.walls[1:-1]:
            assert (first + wall) % page == 0 or fits < page


def test_whole_layers_as_long_as_one_fits():
    assert portions_of(moves(8), None) == Portions(5, 5, (0, 8))
    assert portions_of(moves(8), 17 * TOKEN_BYTES) == Portions(5, 2, (0, 8))
    assert portions_of(moves(8), 17 * TOKEN_BYTES, 1) == Portions(5, 1, (0, 8))
    cut = portions_of(moves(8), 8 * TOKEN_BYTES - 1)
    assert cut == Portions(5, 1, (0, 4, 8))
    assert list(cut.by_layers())[4] == (Portion(range(4, 5), 0, 4), Portion(range(4, 5), 4, 4))


def test_a_portion_is_of_the_bytes_on_the_wire_and_of_the_largest_pair():
    """fp8 takes half of bf16, and each of two ranks has half of the heads."""
    assert portions_of(moves(8, dtype="fp8"), 4 * TOKEN_BYTES) == Portions(5, 1, (0, 8))
    assert portions_of(moves(8, src=2), 8 * TOKEN_BYTES) == Portions(5, 2, (0, 8))
    assert portions_of(moves(8), TOKEN_BYTES - 1) is None
    assert portions_of(moves(8, dtype="fp8"), TOKEN_BYTES // 2 - 1) is None
