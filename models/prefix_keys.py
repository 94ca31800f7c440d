"""Keys of a prompt's beginnings, at any depth: what kept blocks and asked prompts are compared by."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from kvferry.models.prefix import BLOCK_TOKENS, TOKENS_SEED

TOKEN_BYTES = 8
BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES
NAMESPACE_SEED = 3


def packed(tokens: Sequence[int]) -> bytes:
    """Token ids as the hashes take them. OverflowError or TypeError when they are no 64-bit integers."""
    return array("q", tokens).tobytes()


def root_seed(namespace: str = "") -> int:
    """Where the keys of a namespace (an adapter, a salt) begin; the plain one shares those of prompts."""
    return xxh3_64_intdigest(namespace.encode(), seed=NAMESPACE_SEED) if namespace else TOKENS_SEED


@dataclass(slots=True, eq=False)
class PrefixKeys:
    """Keys of one prompt, each computed once, however many workers it is compared with.

    With H(k) the rolling hash of the first k blocks of 64 tokens, which `hashes` holds from k = 1, the key
    of the first d = 64 k + r tokens is H(k) when r = 0 and xxh3(tokens[64 k : d], seed=H(k)) otherwise.
    """

    tokens: Sequence[int]
    hashes: Sequence[int]
    _keys: dict[int, int] = field(default_factory=dict)
    _tails: dict[int, bytes] = field(default_factory=dict)

    def at(self, depth: int) -> int:
        """The key of the first `depth` tokens, from 1 to the prompt's length."""
        block, rest = divmod(depth, BLOCK_TOKENS)
        if not rest:
            return self.hashes[block - 1]
        key = self._keys.get(depth)
        if key is None:
            tail = self._tails.get(block)
            if tail is None:
                begin = block * BLOCK_TOKENS
                tail = self._tails[block] = packed(self.tokens[begin : begin + BLOCK_TOKENS])
            seed = self.hashes[block - 1] if block else TOKENS_SEED
            key = self._keys[depth] = xxh3_64_intdigest(tail[: rest * TOKEN_BYTES], seed=seed)
        return key
