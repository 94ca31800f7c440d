"""KV pools over a side's memory, and which of their pages a handoff takes."""

import numpy as np
import torch
from numpy.typing import NDArray
from transports_parts.memory import Memory

from kvferry.integrations.transports.base import Batch
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec

# 16 layers of 4 heads of 128 in bf16: 1 KiB a token in each of 32 regions.
TOKENS = 2048
MOVED_BYTES = 64 * 2**20
POOL_BYTES = 2 * MOVED_BYTES


def spec(page_size: int) -> PoolSpec:
    """A pool of twice the tokens that a handoff moves; a block is `page_size` KiB."""
    return PoolSpec(
        layers=16, heads=4, head_dim=128, pages=2 * TOKENS // page_size, page_size=page_size, dtype="bf16"
    )


def pool(memory: Memory, page_size: int) -> KVPool:
    """In the first `POOL_BYTES` bytes."""
    of = spec(page_size)
    every = torch.from_numpy(memory.bytes[:POOL_BYTES]).view(torch.bfloat16)
    shape = (of.pages, of.page_size, of.heads, of.head_dim)
    return KVPool(of, tensors=[each.view(shape) for each in every.chunk(len(of.region_bytes))])


def place(page_size: int, seed: int) -> Place:
    """Shuffled pages."""
    pages = np.random.default_rng(seed).permutation(spec(page_size).pages)
    return Place.of(pages[: TOKENS // page_size])


def blocks(source: int, src: Place, target: int, dst: Place, page_size: int) -> Batch:
    """The same pages of pools at `source` and `target` as one batch: every block of it is a descriptor."""
    of = spec(page_size)
    region: NDArray[np.int64] = np.arange(len(of.region_bytes), dtype=np.int64)[:, None] * of.region_bytes[0]
    here, there = (
        (start + region + at.pages[None, :] * of.block_bytes).ravel()
        for start, at in ((source, src), (target, dst))
    )
    return Batch(here, there, np.full(here.size, of.block_bytes, np.int64))
