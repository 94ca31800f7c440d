"""Pieces against copying one head of one token at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.models.moves.pieces import Pieces
from kvferry.models.moves.place import Place
from kvferry.models.moves.plan import plan
from kvferry.models.moves.pool_spec import PoolSpec, ranks_of
from kvferry.policy.kvshape import KVShape
from kvferry.policy.layout import KVLayout, LayoutOrder, RelationKind

LAYER_FIRST, PAGE_FIRST = LayoutOrder.LAYER_FIRST, LayoutOrder.PAGE_FIRST


def _place(page_size, tokens, first, rng, run=1):
    """Random pages of a pool with some to spare, in runs of neighbours."""
    needed = -(-(first + tokens) // page_size)
    groups = -(-needed // run)
    starts = rng.permutation(groups + 2)[:groups] * run
    pages = (starts[:, None] + np.arange(run)).reshape(-1)[:needed]
    return Place.of(pages, first), int((groups + 2) * run)


def _check(slow, heads, src_layout, dst_layout, tokens, src_first=0, dst_first=0, layers=2, seed=0, run=1):
    rng = np.random.default_rng(seed)
    src_at, src_pages = _place(src_layout.page_size, tokens, src_first, rng, run)
    dst_at, dst_pages = _place(dst_layout.page_size, tokens, dst_first, rng, run)
    shape = KVShape(layers=layers, kv_heads=heads, head_dim=3)
    src, dst = ranks_of(shape, src_layout, src_pages), ranks_of(shape, dst_layout, dst_pages)
    held = [slow.filled(pool) for pool in src]
    wanted = slow.moved(src, held, src_at, dst, dst_at, tokens)
    moves = plan(src, src_at, dst, dst_at, tokens)
    for by_layer in (True, False):
        got = [slow.empty(pool) for pool in dst]
        written = [slow.empty(pool) for pool in dst]
        for move in moves:
            pieces = move.pieces(by_layer=by_layer)
            pieces.check(move.src.region_bytes, move.dst.region_bytes)
            slow.apply(pieces, held[move.src_rank], got[move.dst_rank], written[move.dst_rank])
            assert pieces.moved_bytes == move.wire_bytes
            assert pieces.layer_ends[-1] == len(pieces)
            if LAYER_FIRST in (move.src.order, move.dst.order):
                assert len(pieces.coalesced()) == len(pieces), "joined already"
        for rank, pool in enumerate(dst):
            assert all(np.array_equal(a, b) for a, b in zip(got[rank], wanted[rank], strict=True))
            once = sum(int((region == 1).sum()) for region in written[rank])
            assert once == sum(int(region.sum()) for region in written[rank])
            assert once == tokens * pool.token_bytes * 2 * layers
    got = [slow.empty(pool) for pool in dst]
    for move in moves:
        slow.staged(move, held[move.src_rank], got[move.dst_rank])
    for rank in range(len(dst)):
        assert all(np.array_equal(a, b) for a, b in zip(got[rank], wanted[rank], strict=True))
    return moves


@pytest.mark.parametrize(
    ("heads", "src", "dst", "kind", "count"),
    [
        (2, KVLayout(page_size=16), KVLayout(page_size=16), RelationKind.DIRECT, 1),
        (2, KVLayout(page_size=16), KVLayout(page_size=64), RelationKind.REPACK, 1),
        (2, KVLayout(page_size=1), KVLayout(page_size=16), RelationKind.REPACK, 1),
        (2, KVLayout(page_size=16), KVLayout(page_size=16, order=PAGE_FIRST), RelationKind.REPACK, 1),
        (
            2,
            KVLayout(page_size=16, order=PAGE_FIRST),
            KVLayout(page_size=16, order=PAGE_FIRST),
            RelationKind.DIRECT,
            1,
        ),
        (4, KVLayout(page_size=4, tp=2), KVLayout(page_size=4, tp=4), RelationKind.SLICED, 4),
        (4, KVLayout(page_size=4, tp=4), KVLayout(page_size=4, tp=1), RelationKind.SLICED, 4),
        (4, KVLayout(page_size=4, tp=8), KVLayout(page_size=4, tp=2), RelationKind.SLICED, 4),
        (4, KVLayout(page_size=4, tp=2), KVLayout(page_size=4, tp=8), RelationKind.SLICED, 8),
        (4, KVLayout(page_size=4, tp=8), KVLayout(page_size=4, tp=8), RelationKind.DIRECT, 8),
    ],
)
def test_named_pairs(slow, heads, src, dst, kind, count):
    moves = _check(slow, heads, src, dst, tokens=77)
    assert {move.relation.kind for move in moves} == {kind}
    assert len(moves) == count


LAYOUTS = st.builds(
    KVLayout,
    page_size=st.sampled_from([1, 2, 3, 4, 8, 16]),
    tp=st.sampled_from([1, 2, 4, 8]),
    order=st.sampled_from(LayoutOrder),
    dtype=st.just("bfloat16"),
)


@settings(max_examples=150, deadline=None)
@given(
    heads=st.sampled_from([1, 2, 4, 8]),
    src=LAYOUTS,
    dst=LAYOUTS,
    tokens=st.integers(1, 40),
    src_first=st.integers(0, 20),
    dst_first=st.integers(0, 20),
    layers=st.integers(1, 3),
    run=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_random_pairs(slow, heads, src, dst, tokens, src_first, dst_first, layers, run, seed):
    _check(slow, heads, src, dst, tokens, src_first, dst_first, layers, seed, run)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(0, 60), cuts=st.lists(st.integers(0, 60), max_size=3))
def test_coalescing_changes_nothing(slow, seed, count, cuts):
    """Unit blocks of two regions on either side, shuffled: all bytes the same, and no layers mixed."""
    rng = np.random.default_rng(seed)
    block = 4
    src = [rng.integers(0, 256, 40 * block, np.uint8) for _ in range(2)]
    # half of them keep their place, so that neighbours are likely
    source = np.sort(rng.permutation(80)[:count])
    target = np.where(rng.random() < 0.5, source, rng.permutation(80)[:count])
    ends = np.sort(np.minimum(np.array([*cuts, count], dtype=np.int64), count))
    pieces = Pieces(
        source // 40,
        source % 40 * block,
        target // 40,
        target % 40 * block,
        np.full(count, block, np.int64),
        ends,
    )
    joined = pieces.coalesced()
    for layer in range(len(ends)):
        start = 0 if layer == 0 else layer - 1
        before, after = ([np.zeros(40 * block, np.uint8) for _ in range(2)] for _ in range(2))
        low = (0, 0) if layer == 0 else (int(pieces.layer_ends[start]), int(joined.layer_ends[start]))
        slow.apply(pieces.part(low[0], int(ends[layer])), src, before)
        slow.apply(joined.part(low[1], int(joined.layer_ends[layer])), src, after)
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert joined.moved_bytes == pieces.moved_bytes


def test_neighbours_become_one():
    pool = PoolSpec(layers=3, heads=2, head_dim=4, pages=10, page_size=4, dtype="bf16")
    # 5,6,7 -> 1,2,3 in another order: one run per layer and K/V, and page 9 on its own
    (move,) = plan([pool], Place.of([7, 5, 9, 6]), [pool], Place.of([3, 1, 9, 2]), 16)
    pieces = move.pieces()
    assert pieces.nbytes.tolist() == [3 * pool.block_bytes, pool.block_bytes] * 6
    assert pieces.layer_ends.tolist() == [4, 8, 12]
    (apart,) = plan([pool], Place.of([5, 6]), [pool], Place.of([2, 1]), 8)
    assert len(apart.pieces()) == 12, "neighbours in the source alone are not"


def test_whole_pages_of_page_first_pools_go_in_one_piece():
    pool = PoolSpec(layers=3, heads=2, head_dim=4, pages=10, page_size=4, dtype="bf16", order=PAGE_FIRST)
    (move,) = plan([pool], Place.of([5, 6, 2]), [pool], Place.of([1, 2, 8]), 10)
    whole = move.pieces(by_layer=False)
    assert whole.nbytes[0] == 2 * pool.page_bytes
    assert len(whole) == 1 + 2 * 3
    assert whole.layer_ends.tolist() == [0, 0, 7]
    layered = move.pieces()
    assert layered.layer_ends.tolist() == [4, 8, 12], "K and V of a whole page's layer are neighbours"


def test_addresses_and_ranges():
    pool = PoolSpec(layers=1, heads=1, head_dim=2, pages=4, page_size=2, dtype="fp16")
    (move,) = plan([pool], Place.of([3]), [pool], Place.of([1]), 2)
    pieces = move.pieces()
    src, dst = pieces.addresses(np.array([1000, 2000]), np.array([5000, 6000]))
    assert src.tolist() == [1000 + 3 * 8, 2000 + 3 * 8]
    assert dst.tolist() == [5000 + 8, 6000 + 8]
    pieces.check(pool.region_bytes, pool.region_bytes)
    with pytest.raises(ValueError, match="source: 8 bytes at 24 do not fit region 0 of 31 bytes"):
        pieces.check((31, 32), pool.region_bytes)
    with pytest.raises(ValueError, match="destination: a piece is in none of 1 regions"):
        pieces.check(pool.region_bytes, (32,))
