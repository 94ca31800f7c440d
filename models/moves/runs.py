"""The pieces that carry some heads of some tokens from one pool to another, byte for byte."""

import numpy as np

from kvferry.models.moves.pieces import Pieces
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import Ints, PoolSpec
from kvferry.policy.layout import LayoutOrder

ZERO = np.zeros(1, dtype=np.int64)


def pieces_between(
    src: PoolSpec,
    src_at: Place,
    dst: PoolSpec,
    dst_at: Place,
    tokens: int,
    heads: range,
    by_layer: bool = True,
) -> Pieces:
    """Pieces, neighbours joined, for `tokens` >= 1 tokens of the model's heads `heads`.

    Both pools have the same layers, head_dim and dtype, and hold those heads; the places are checked.
    They come layer after layer. With `by_layer` False and both pools page-first, whole pages go in one
    piece each, which can go only when the last layer is computed.
    """
    whole_heads = len(heads) == src.heads == dst.heads
    starts = _starts(src.page_size, src_at, dst.page_size, dst_at, tokens, whole_heads)
    lengths = np.diff(starts, append=tokens)
    src_page, src_slot = _locate(starts, src_at, src.page_size)
    dst_page, dst_slot = _locate(starts, dst_at, dst.page_size)
    src_offset = src.offset(src_page, ZERO, ZERO, src_slot, heads.start - src.first_head + ZERO)
    dst_offset = dst.offset(dst_page, ZERO, ZERO, dst_slot, heads.start - dst.first_head + ZERO)
    nbytes = lengths * (len(heads) * src.head_bytes)
    page_first = src.order is dst.order is LayoutOrder.PAGE_FIRST
    whole = (lengths == src.page_size) & (src.page_size == dst.page_size) & page_first & whole_heads
    if by_layer or not whole.any():
        pieces = _every_layer(src, src_offset, dst, dst_offset, nbytes, joins_kv=bool(whole.any()))
        return pieces if by_layer or not page_first else _after_all(pieces)
    pages = _flat(src_offset[whole], dst_offset[whole], np.full(int(whole.sum()), src.page_bytes))
    rest = _every_layer(src, src_offset[~whole], dst, dst_offset[~whole], nbytes[~whole])
    return _after_all(
        Pieces(
            np.concatenate((pages.src_region, rest.src_region)),
            np.concatenate((pages.src_offset, rest.src_offset)),
            np.concatenate((pages.dst_region, rest.dst_region)),
            np.concatenate((pages.dst_offset, rest.dst_offset)),
            np.concatenate((pages.nbytes, rest.nbytes)),
            rest.layer_ends + len(pages),
        )
    )


def _starts(src_page: int, src_at: Place, dst_page: int, dst_at: Place, tokens: int, joined: bool) -> Ints:
    """First tokens of runs that stay in one page on both sides; of every token where heads are cut."""
    if not joined or min(src_page, dst_page) == 1:
        return np.arange(tokens, dtype=np.int64)
    cuts = (
        np.arange(-(at.first % size), tokens, size, dtype=np.int64)
        for at, size in ((src_at, src_page), (dst_at, dst_page))
    )
    return np.unique(np.maximum(np.concatenate(tuple(cuts)), 0))


def _locate(starts: Ints, at: Place, page_size: int) -> tuple[Ints, Ints]:
    index, slot = np.divmod(starts + at.first, page_size)
    return at.pages[index], slot


def _flat(src_offset: Ints, dst_offset: Ints, nbytes: Ints) -> Pieces:
    zeros = np.zeros(len(nbytes), dtype=np.int64)
    ends = np.array([len(nbytes)], dtype=np.int64)
    return Pieces(zeros, src_offset, zeros, dst_offset, nbytes, ends).coalesced()


def _every_layer(
    src: PoolSpec, src_offset: Ints, dst: PoolSpec, dst_offset: Ints, nbytes: Ints, joins_kv: bool = False
) -> Pieces:
    """Those of layer 0's K, repeated for K and V of every layer.

    Offsets differ between layers by a constant, so pieces that join in one join in all: joining them
    before they are repeated sorts 2 * layers times fewer.
    """
    one = _flat(src_offset, dst_offset, nbytes)
    layer, kv = np.divmod(np.arange(2 * src.layers, dtype=np.int64), 2)
    shape = (2 * src.layers, len(one))
    src_shift, dst_shift = (pool.offset(0 * layer, layer, kv, ZERO, ZERO) for pool in (src, dst))
    pieces = Pieces(
        np.broadcast_to(src.region(layer, kv)[:, None], shape).reshape(-1),
        (src_shift[:, None] + one.src_offset).reshape(-1),
        np.broadcast_to(dst.region(layer, kv)[:, None], shape).reshape(-1),
        (dst_shift[:, None] + one.dst_offset).reshape(-1),
        np.broadcast_to(one.nbytes, shape).reshape(-1),
        np.arange(1, src.layers + 1, dtype=np.int64) * (2 * len(one)),
    )
    return pieces.coalesced() if joins_kv else pieces


def _after_all(pieces: Pieces) -> Pieces:
    ends = np.zeros_like(pieces.layer_ends)
    ends[-1] = len(pieces)
    return Pieces(
        pieces.src_region, pieces.src_offset, pieces.dst_region, pieces.dst_offset, pieces.nbytes, ends
    )
