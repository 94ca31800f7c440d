"""The memory of one side, and which of its blocks a move takes."""

import numpy as np
from numpy.typing import NDArray

from kvferry.integrations.transports.base import Batch, Region


class Memory:
    """`nbytes` bytes that the kernel has given already: untouched pages would be what is measured."""

    def __init__(self, nbytes: int) -> None:
        self.bytes: NDArray[np.uint8] = np.empty(nbytes, np.uint8)
        self.bytes[:] = 1

    @property
    def address(self) -> int:
        return int(self.bytes.ctypes.data)

    @property
    def region(self) -> Region:
        return Region(self.address, self.bytes.size)


def scattered(source: int, target: int, moved_bytes: int, blocks: int, seed: int = 0) -> Batch:
    """`blocks` equal blocks of [source, source + moved_bytes), shuffled, to shuffled places of the target.

    No two neighbours stay neighbours, so that no library can make one of them.
    """
    rng = np.random.default_rng(seed)
    block = moved_bytes // blocks
    here, there = (rng.permutation(blocks).astype(np.int64) * block for _ in range(2))
    return Batch(source + here, target + there, np.full(blocks, block, np.int64))
