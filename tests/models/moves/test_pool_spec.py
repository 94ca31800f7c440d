"""What is registered, and where a token's bytes are."""

import numpy as np
import pytest

from kvferry.models.moves.pool_spec import PoolSpec, canonical_dtype, ranks_of
from kvferry.policy.kvshape import KVShape
from kvferry.policy.layout import KVLayout, LayoutOrder


@pytest.mark.parametrize("order", list(LayoutOrder))
def test_offsets_are_those_of_the_shapes(order):
    pool = PoolSpec(layers=2, heads=3, head_dim=4, pages=5, page_size=6, dtype="bfloat16", order=order)
    if order is LayoutOrder.PAGE_FIRST:
        at = np.arange(5 * 2 * 2 * 6 * 3 * 4).reshape(5, 2, 2, 6, 3, 4)
    else:
        at = np.broadcast_to(np.arange(5 * 6 * 3 * 4).reshape(5, 1, 1, 6, 3, 4), (5, 2, 2, 6, 3, 4))
    for index in np.ndindex(5, 2, 2, 6, 3):
        page, layer, kv, token, head = index
        assert pool.offset(page, layer, kv, token, head) == 2 * at[index][0]
        region = 0 if order is LayoutOrder.PAGE_FIRST else 2 * layer + kv
        assert pool.region(layer, kv) == region
    assert sum(pool.region_bytes) == pool.pages * pool.page_bytes == 5 * 2 * 2 * 6 * 3 * 4 * 2
    assert len(pool.region_bytes) == (1 if order is LayoutOrder.PAGE_FIRST else 4)


@pytest.mark.parametrize(
    ("heads", "tp", "held"),
    [
        (8, 2, [(0, 4), (4, 4)]),
        (4, 4, [(0, 1), (1, 1), (2, 1), (3, 1)]),
        (4, 8, [(0, 1), (0, 1), (1, 1), (1, 1), (2, 1), (2, 1), (3, 1), (3, 1)]),
        (1, 2, [(0, 1), (0, 1)]),
    ],
)
def test_heads_are_given_out_as_sglang_does(heads, tp, held):
    pools = ranks_of(KVShape(2, heads, 8), KVLayout(tp=tp, page_size=16), pages=7)
    assert [(pool.first_head, pool.heads) for pool in pools] == held
    assert {(pool.pages, pool.page_size, pool.layers, pool.head_dim) for pool in pools} == {(7, 16, 2, 8)}


@pytest.mark.parametrize(
    ("shape", "layout", "says"),
    [
        (KVShape(2, 6, 8), KVLayout(tp=4), "6 KV heads do not divide over TP 4"),
        (KVShape(2, 3, 8), KVLayout(tp=4), "3 KV heads do not divide over TP 4"),
        (KVShape(2, 1, 8, mla=True), KVLayout(), "MLA"),
        (KVShape(2, 1, 8), KVLayout(mla=True), "MLA"),
        (KVShape(2, 1, 8, window_layers=1, window_tokens=9), KVLayout(), "hybrid"),
        (KVShape(2, 1, 8), KVLayout(dtype="fp4_e2m1"), "whole bytes"),
        (KVShape(2, 1, 8), KVLayout(dtype="float7"), "unknown KV dtype 'float7'"),
        (KVShape(2, 1, 8), KVLayout(page_size=0), "page_size is 0"),
    ],
)
def test_pools_that_are_not_modelled(shape, layout, says):
    with pytest.raises(ValueError, match=says):
        ranks_of(shape, layout, pages=4)


def test_one_name_for_each_dtype():
    assert canonical_dtype("torch.float8_e4m3fn") == canonical_dtype("fp8") == "fp8_e4m3"
    assert PoolSpec(1, 1, 1, 1, 1, "half") == PoolSpec(1, 1, 1, 1, 1, "torch.float16")
