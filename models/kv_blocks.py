"""The KV blocks that one cache of a worker holds, from what it tells of each, matched to the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from kvferry.models.prefix import BLOCK_TOKENS
from kvferry.models.prefix_keys import BLOCK_BYTES, TOKEN_BYTES, PrefixKeys, packed, root_seed

# About 300 bytes each: see docs/operate.md.
MAX_BLOCKS = 1 << 20


# Of one block: the key of the tokens up to its end; then what a child hashes on from: a seed and the last
# `rest` tokens before `end` bytes of `data`, which the blocks stored at once share. (key, seed, data, end,
# rest): a plain tuple, for the garbage collector passes over a million of those but not over as many objects.
_Block = tuple[int, int, bytes, int, int]


@dataclass(slots=True, eq=False)
class HeldBlocks:
    """Blocks by the worker's own hashes, which are only names here, and how many have each of our keys.

    A block whose parent is not known is passed over, for nobody can say what comes before it; so is one
    beyond `limit`. Both are counted, and both can only make an answer too small.
    """

    page_tokens: int
    limit: int = MAX_BLOCKS
    orphans: int = 0
    refused: int = 0
    _blocks: dict[int, _Block] = field(default_factory=dict)
    _keys: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.page_tokens < 1:
            raise ValueError(f"a page of {self.page_tokens} tokens: must be at least 1")

    def __len__(self) -> int:
        return len(self._blocks)

    def store(
        self,
        hashes: Sequence[int],
        parent: int | None,
        tokens: Sequence[int],
        block_tokens: int,
        namespace: str = "",
    ) -> None:
        """Blocks in a row, the first one after `parent` (None: at the beginning of `namespace`).

        ValueError when `tokens` are not `block_tokens` for each hash, OverflowError or TypeError when they
        are no 64-bit integers; nothing has been stored then.
        """
        if block_tokens < 1 or len(tokens) != len(hashes) * block_tokens:
            raise ValueError(f"{len(tokens)} tokens for {len(hashes)} blocks of {block_tokens}")
        above = self._above(parent, namespace)
        if above is None:
            self.orphans += len(hashes)
            return
        room = self.limit - len(self._blocks)
        if len(hashes) > room:
            self.refused += len(hashes) - max(0, room)
            hashes = hashes[: max(0, room)]
        _, seed, before, end, rest = above
        data = before[end - rest * TOKEN_BYTES : end] + packed(tokens)
        view = memoryview(data)
        blocks, keys = self._blocks, self._keys
        begin, end, size = 0, rest * TOKEN_BYTES, block_tokens * TOKEN_BYTES
        for name in hashes:
            end += size
            while end - begin >= BLOCK_BYTES:
                seed = xxh3_64_intdigest(view[begin : begin + BLOCK_BYTES], seed=seed)
                begin += BLOCK_BYTES
            key = xxh3_64_intdigest(view[begin:end], seed=seed) if end > begin else seed
            if name not in blocks:
                below = (end - begin) // TOKEN_BYTES
                blocks[name] = (key, seed, data, end, below) if below else (key, seed, b"", 0, 0)
                keys[key] = keys.get(key, 0) + 1

    def remove(self, hashes: Sequence[int]) -> None:
        """These blocks are gone; unknown ones were never counted."""
        for name in hashes:
            block = self._blocks.pop(name, None)
            if block is None:
                continue
            key = block[0]
            left = self._keys[key] - 1
            if left:
                self._keys[key] = left
            else:
                del self._keys[key]

    def clear(self) -> None:
        """Nothing is held."""
        self._blocks.clear()
        self._keys.clear()

    def held(self, prompt: PrefixKeys) -> int:
        """How many leading tokens of a prompt need no prefill: whole pages, and never its last token.

        A tree holds a block's ancestors as long as the block: that allows a binary search, first among
        every lcm(page, 64) tokens, whose keys the prompt has anyway, then among the pages that follow.
        """
        page = self.page_tokens
        most = (len(prompt.tokens) - 1) // page
        stride = math.lcm(page, BLOCK_TOKENS) // page
        pages = stride * self._search(prompt, 0, most // stride, stride * page)
        rest = min(most - pages, stride - 1)
        return page * (pages + self._search(prompt, pages * page, rest, page))

    def _search(self, prompt: PrefixKeys, begin: int, most: int, step: int) -> int:
        """The greatest n <= most for which the first begin + n step tokens are held, given that n = 0 is."""
        low = 0
        while low < most:
            middle = (low + most + 1) // 2
            if prompt.at(begin + middle * step) in self._keys:
                low = middle
            else:
                most = middle - 1
        return low

    def _above(self, parent: int | None, namespace: str) -> _Block | None:
        if parent is None:
            return 0, root_seed(namespace), b"", 0, 0
        return self._blocks.get(parent)
