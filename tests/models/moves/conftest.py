"""Pools as byte buffers, and the slow way to move KV between them: one head of one token at a time."""

from collections.abc import Sequence

import numpy as np
import pytest

from kvferry.models.moves.pieces import Pieces
from kvferry.models.moves.place import Place
from kvferry.models.moves.plan import Move
from kvferry.models.moves.pool_spec import PoolSpec
from kvferry.policy.layout import LayoutOrder

Buffers = list[np.ndarray]


def _array(pool: PoolSpec, buffers: Buffers, layer: int, kv: int) -> np.ndarray:
    """[pages, page_size, heads, bytes of a head], by the contract's shapes and not by PoolSpec.offset."""
    shape = (pool.page_size, pool.heads, pool.head_bytes)
    if pool.order is LayoutOrder.PAGE_FIRST:
        return buffers[0].reshape(pool.pages, pool.layers, 2, *shape)[:, layer, kv]
    return buffers[2 * layer + kv].reshape(pool.pages, *shape)


class Slow:
    @staticmethod
    def filled(pool: PoolSpec) -> Buffers:
        """Random bytes, equal on every rank for the same head of the same token."""
        buffers = [np.zeros(size, np.uint8) for size in pool.region_bytes]
        for head in range(pool.heads):
            rng = np.random.default_rng(pool.first_head + head)
            for layer in range(pool.layers):
                for kv in range(2):
                    part = _array(pool, buffers, layer, kv)[:, :, head]
                    part[...] = rng.integers(0, 256, part.shape, np.uint8)
        return buffers

    @staticmethod
    def empty(pool: PoolSpec) -> Buffers:
        return [np.zeros(size, np.uint8) for size in pool.region_bytes]

    @staticmethod
    def moved(
        src: Sequence[PoolSpec],
        held: Sequence[Buffers],
        src_at: Place,
        dst: Sequence[PoolSpec],
        dst_at: Place,
        tokens: int,
    ) -> list[Buffers]:
        """What every destination rank holds afterwards, of zeroed buffers."""
        after = [Slow.empty(pool) for pool in dst]
        for pool, buffers in zip(dst, after, strict=True):
            for layer in range(pool.layers):
                for kv in range(2):
                    target = _array(pool, buffers, layer, kv)
                    for head in range(pool.first_head, pool.first_head + pool.heads):
                        rank = next(
                            i for i, s in enumerate(src) if s.first_head <= head < s.first_head + s.heads
                        )
                        given = src[rank]
                        source = _array(given, held[rank], layer, kv)
                        for token in range(tokens):
                            a, b = src_at.first + token, dst_at.first + token
                            target[
                                dst_at.pages[b // pool.page_size],
                                b % pool.page_size,
                                head - pool.first_head,
                            ] = source[
                                src_at.pages[a // given.page_size],
                                a % given.page_size,
                                head - given.first_head,
                            ]
        return after

    @staticmethod
    def apply(pieces: Pieces, src: Buffers, dst: Buffers, written: Buffers | None = None) -> None:
        for i in range(len(pieces)):
            a, b, n = int(pieces.src_offset[i]), int(pieces.dst_offset[i]), int(pieces.nbytes[i])
            assert n > 0
            dst[pieces.dst_region[i]][b : b + n] = src[pieces.src_region[i]][a : a + n]
            assert a >= 0
            assert b >= 0
            assert a + n <= len(src[pieces.src_region[i]])
            assert b + n <= len(dst[pieces.dst_region[i]])
            if written is not None:
                written[pieces.dst_region[i]][b : b + n] += 1

    @staticmethod
    def staged(move: Move, src: Buffers, dst: Buffers) -> None:
        """Gather, the bulk write, scatter; the dtype does not change."""
        near, far = Slow.empty(move.staging(move.src.dtype)), Slow.empty(move.staging(move.dst.dtype))
        Slow.apply(move.gather(), src, near)
        Slow.apply(move.bulk(), near, far)
        Slow.apply(move.scatter(), far, dst)


@pytest.fixture(scope="session")
def slow() -> type[Slow]:
    return Slow
