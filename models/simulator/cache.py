"""A worker's prefix cache: full blocks of prompts, least recently used leaves given up first."""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Blocks of `block_tokens` tokens. A locked block serves a request in flight and cannot go.

    A block is only ever locked together with all before it in its prompt, and unlocked after all behind
    it, so that the oldest idle block is always a leaf (SGLang's radix tree evicts leaves by last use).
    """

    __slots__ = ("_idle", "_locks", "block_tokens")

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = max(1, block_tokens)
        self._locks: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def tokens(self) -> int:
        """Tokens held, locked or idle."""
        return len(self._locks) * self.block_tokens

    @property
    def idle_tokens(self) -> int:
        """Tokens that can be given up at once."""
        return len(self._idle) * self.block_tokens

    def match(self, blocks: Sequence[int]) -> int:
        """How many leading blocks are held."""
        locks, count = self._locks, 0
        for block in blocks:
            if block not in locks:
                break
            count += 1
        return count

    def lock(self, blocks: Sequence[int]) -> None:
        """Keep held blocks for one more request."""
        locks, idle = self._locks, self._idle
        for block in blocks:
            if not locks[block]:
                del idle[block]
            locks[block] += 1

    def add(self, blocks: Sequence[int]) -> int:
        """Lock blocks that were computed just now; returns how many of them were not yet held."""
        locks, idle, new = self._locks, self._idle, 0
        for block in blocks:
            users = locks.get(block)
            if users is None:
                new += 1
                locks[block] = 1
                continue
            if not users:
                del idle[block]
            locks[block] = users + 1
        return new

    def unlock(self, blocks: Sequence[int]) -> None:
        """A request has ended that had locked these, first block first."""
        locks, idle = self._locks, self._idle
        for block in reversed(blocks):
            locks[block] -= 1
            if not locks[block]:
                idle[block] = None

    def evict(self, tokens: int) -> None:
        """Give up at least `tokens` tokens, oldest leaves first. KeyError when so many are not idle."""
        for _ in range(-(-tokens // self.block_tokens)):
            block, _nothing = self._idle.popitem(last=False)
            del self._locks[block]
