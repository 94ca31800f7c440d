"""Which prompt beginnings each worker has seen, hence probably still holds as KV."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

BLOCK_TOKENS = 64
BLOCK_BYTES = 256
MIN_CAPACITY = 64
SHRINK = 0.9
REGROW = 1.01
BYTES_SEED, TOKENS_SEED = 1, 2


def block_hashes(prompt: Sequence[int] | bytes) -> tuple[int, ...]:
    """Rolling hashes of a prompt's full blocks: equal up to block i exactly when the prompts are.

    64 token ids or 256 bytes a block; ids and bytes never match each other.
    """
    if isinstance(prompt, bytes):
        size, data, seed = BLOCK_BYTES, prompt, BYTES_SEED
    else:
        size, data, seed = BLOCK_TOKENS * 8, array("q", prompt).tobytes(), TOKENS_SEED
    hashes = []
    for end in range(size, len(data) + 1, size):
        seed = xxh3_64_intdigest(data[end - size : end], seed=seed)
        hashes.append(seed)
    return tuple(hashes)


@dataclass(slots=True)
class PrefixIndex:
    """The blocks sent to one worker, least recently used forgotten first.

    `capacity_blocks` is the worker's KV room; what its answers report as cached corrects how much of it
    is believed: a smaller hit than expected shrinks the belief by a tenth, an expected one regrows it.
    """

    capacity_blocks: int
    _limit: float = field(init=False)
    _blocks: OrderedDict[int, None] = field(init=False, default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._limit = float(max(MIN_CAPACITY, self.capacity_blocks))

    def __len__(self) -> int:
        return len(self._blocks)

    def held(self, hashes: Sequence[int]) -> int:
        """How many leading blocks of a prompt the worker is believed to hold."""
        count = 0
        for block in hashes:
            if block not in self._blocks:
                break
            count += 1
        return count

    def add(self, hashes: Sequence[int]) -> None:
        """The worker computed this prompt. Its end is forgotten before its beginning, as in a radix tree."""
        for block in reversed(hashes):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        self._trim()

    def correct(self, expected_blocks: int, reported_blocks: int) -> None:
        """The worker reported a hit of `reported_blocks` where `expected_blocks` were expected."""
        if reported_blocks < expected_blocks:
            self._limit = max(MIN_CAPACITY, SHRINK * min(self._limit, len(self._blocks)))
            self._trim()
        elif expected_blocks:
            self._limit = min(float(max(MIN_CAPACITY, self.capacity_blocks)), REGROW * self._limit)

    def clear(self) -> None:
        """The worker restarted or flushed its cache."""
        self._blocks.clear()

    def _trim(self) -> None:
        while len(self._blocks) > self._limit:
            self._blocks.popitem(last=False)
