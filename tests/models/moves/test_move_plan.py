"""Who gives which heads to whom, and what cannot be done."""

from dataclasses import replace

import pytest

from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.place import Place
from kvferry.models.moves.plan import plan
from kvferry.models.moves.pool_spec import PoolSpec, ranks_of
from kvferry.models.moves.relate import head_routes, relate
from kvferry.policy.kvshape import KVShape
from kvferry.policy.layout import KVLayout, RelationKind

POOL = PoolSpec(layers=2, heads=4, head_dim=8, pages=10, page_size=4, dtype="bf16")


def _ranks(heads, tp):
    return ranks_of(KVShape(2, heads, 8), KVLayout(tp=tp), pages=4)


@pytest.mark.parametrize(
    ("heads", "src_tp", "dst_tp", "given"),
    [
        (4, 2, 4, [2, 2]),
        (4, 4, 1, [1, 1, 1, 1]),
        (4, 8, 8, [1] * 8),
        (2, 8, 4, [1, 1, 0, 0, 1, 1, 0, 0]),  # each head's two takers are given to two of its four holders
        (2, 4, 8, [2, 2, 2, 2]),
        (4, 8, 2, [1, 0, 1, 0, 1, 0, 1, 0]),
    ],
)
def test_replicas_share_the_work(heads, src_tp, dst_tp, given):
    src, dst = _ranks(heads, src_tp), _ranks(heads, dst_tp)
    routes = head_routes(src, dst)
    counts = [0] * src_tp
    for rank, _, moved in routes:
        assert src[rank].first_head <= moved.start
        assert moved.stop <= src[rank].first_head + src[rank].heads
        counts[rank] += len(moved)
    assert counts == given
    for rank, pool in enumerate(dst):
        taken = [head for _, to, moved in routes if to == rank for head in moved]
        assert taken == list(range(pool.first_head, pool.first_head + pool.heads))


def test_relations_say_what_it_takes():
    assert relate(POOL, replace(POOL, pages=3)).kind is RelationKind.DIRECT
    assert relate(POOL, POOL).descriptors_per_token == 1.0
    sliced = relate(POOL, replace(POOL, heads=2))
    assert (sliced.kind, sliced.descriptors_per_token) == (RelationKind.SLICED, 4.0)
    repack = relate(POOL, replace(POOL, page_size=16, order="page_first", dtype="fp8"))
    assert repack.kind is RelationKind.REPACK
    assert repack.steps == (
        "page_size 4 to 16",
        "order layer_first to page_first",
        "dtype bfloat16 to fp8_e4m3",
    )


@pytest.mark.parametrize(
    ("dst", "src_pages", "dst_pages", "says"),
    [
        (replace(POOL, head_dim=16), [0, 1], [0, 1], "head_dim 8 in the source, 16 in the destination"),
        (replace(POOL, layers=3), [0, 1], [0, 1], "2 layers in the source, 3 in the destination"),
        (replace(POOL, heads=8), [0, 1], [0, 1], "KV heads differ: 4 (0 to 3) in the source, 8 (0 to 7)"),
        (replace(POOL, heads=2), [0, 1], [0, 1], "KV heads differ"),
        (replace(POOL, dtype="int8"), [0, 1], [0, 1], "KV dtype bfloat16 cannot be converted to int8"),
        (POOL, [0], [0, 1], "source: 1 pages of 4 tokens, 2 needed for 7 tokens from token 0"),
        (POOL, [0, 1], [0], "destination: 1 pages of 4 tokens, 2 needed"),
        (POOL, [0, 1], [3, 3], "destination: page 3 is given twice"),
        (POOL, [0, 10], [0, 1], "source: page 10 is outside a pool of 10 pages"),
        (POOL, [0, 1], [-1, 1], "destination: page -1 is outside"),
    ],
)
def test_impossible_moves_say_why(dst, src_pages, dst_pages, says):
    with pytest.raises(Impossible) as caught:
        plan([POOL], Place.of(src_pages), [dst], Place.of(dst_pages), 7)
    assert says in caught.value.reason


def test_sides_that_make_no_sense():
    with pytest.raises(Impossible, match="source: no ranks"):
        plan([], Place.of([0]), [POOL], Place.of([0]), 1)
    with pytest.raises(Impossible, match="destination: ranks differ"):
        plan([POOL], Place.of([0]), [POOL, replace(POOL, page_size=8)], Place.of([0]), 1)
    with pytest.raises(Impossible, match="first token is -1"):
        plan([POOL], Place.of([0], first=-1), [POOL], Place.of([0]), 1)
    with pytest.raises(Impossible, match="-1 tokens"):
        plan([POOL], Place.of([0]), [POOL], Place.of([0]), -1)


def test_nothing_to_move_and_pages_that_are_not_touched():
    assert plan([POOL], Place.of([]), [POOL], Place.of([]), 0) == ()
    # a held prefix may repeat and lie anywhere: only what is written is looked at
    (move,) = plan([POOL], Place.of([99, 1], first=4), [POOL], Place.of([2, 2, 5], first=8), 4)
    assert move.pieces().src_offset.tolist() == [POOL.block_bytes] * 4
    assert move.pieces().dst_offset.tolist() == [5 * POOL.block_bytes] * 4


@pytest.mark.parametrize(
    ("src", "dst", "wire"),
    [("bf16", "fp8", "fp8_e4m3"), ("fp8_e5m2", "fp16", "fp8_e5m2"), ("bf16", "fp16", "float16")],
)
def test_the_smaller_dtype_travels(src, dst, wire):
    (move,) = plan([replace(POOL, dtype=src)], Place.of([0]), [replace(POOL, dtype=dst)], Place.of([0]), 3)
    assert move.converts
    assert move.wire_dtype == wire
    assert move.bulk().nbytes.tolist() == [move.wire_bytes]
    assert move.bulk(by_layer=True).nbytes.tolist() == [move.wire_bytes // 2] * 2
    assert move.gather().moved_bytes == 3 * 2 * 2 * POOL.heads * 8 * move.src.element_bytes
    assert move.scatter().moved_bytes == 3 * 2 * 2 * POOL.heads * 8 * move.dst.element_bytes
    with pytest.raises(Impossible, match="does not go byte by byte"):
        move.pieces()
