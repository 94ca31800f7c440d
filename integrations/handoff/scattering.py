"""From a staging slot into the pool, and checks of what is there."""

import time
from collections.abc import Iterator

from kvferry.integrations.handoff.checksums import CHECKSUM_BYTES, differing, page_checksums
from kvferry.integrations.handoff.errors import Corrupt
from kvferry.integrations.handoff.expected import Expected
from kvferry.integrations.handoff.part import Route, Spent
from kvferry.integrations.transports.errors import Refused
from kvferry.integrations.transports.kernels.convert import convert
from kvferry.integrations.transports.kernels.staged import gather, scatter
from kvferry.integrations.transports.kernels.tensors import torch
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.place import Place
from kvferry.models.moves.portions import Portion

__all__ = ["Target"]

# As many layers at a time as the cache holds: converting all at once pays for new memory.
BUFFER_BYTES = 4 << 20
# Of tokens of one layer, see `filling`.
TOKENS_BYTES = 1 << 20


class Target:
    """The heads of a route, of a portion of what is expected, in the pool of the route's destination rank."""

    def __init__(self, route: Route, pool: KVPool, expected: Expected, portion: Portion) -> None:
        self.route, self.pool, self.tokens = route, pool, portion.tokens
        self.at = Place(expected.at.pages, expected.at.first + portion.first_token)
        self._expected, self._portion = expected, portion
        self._pages = self.at.used(route.dst.page_size, portion.tokens)
        first = route.heads.start - route.dst.first_head
        heads = slice(first, first + len(route.heads))
        wanted, result = expected.wanted.get(route.dst_rank), expected.scales.get(route.dst_rank)
        self._wanted = None if wanted is None else wanted[:, :, heads]
        self._result = None if result is None else result[:, :, heads]

    def nbytes(self, layers: int, dtype_bytes: int) -> int:
        """Bytes of so many layers in staged form."""
        return layers * 2 * self.tokens * len(self.route.heads) * self.route.dst.head_dim * dtype_bytes

    def landed(self, scales: torch.Tensor | None, checksums: bytes | None) -> Spent:
        """The source wrote everything into the pool itself: check it, keep its scales.

        Raises `Corrupt`, and `Refused` for scales other than wanted.
        """
        if self.route.src.dtype != self.route.dst.dtype:
            raise Refused(f"{self.route.src.dtype} was written into a pool of {self.route.dst.dtype}")
        if self._result is not None:
            given = torch.ones_like(self._result) if scales is None else scales
            if self._wanted is not None and not torch.equal(given, self._wanted):
                raise Refused("fp8 values came in other scales than wanted")
            self._result.copy_(given)
        if checksums is None:
            return Spent()
        began_s = time.monotonic()
        self._check_length(checksums)
        found = self._checksums(self._read())
        self._compare(checksums, found, "its checksum is not the source's")
        return Spent(verify_s=time.monotonic() - began_s)

    def scatter(self, staged: torch.Tensor, scales: torch.Tensor | None, checksums: bytes | None) -> Spent:
        """Write what is staged into the pool, in its dtype.

        With checksums, those of `staged` are compared first and what was written is read again: raises
        `Corrupt`. ValueError as `convert` raises it, `Refused` for fp8 values whose scales are not those of
        the whole sequence.
        """
        verify_s = 0.0
        mark_s = time.monotonic()
        staged = staged.to(self.pool.device)  # where ranks are on several devices the slots are on one
        if checksums is not None:
            self._check_length(checksums)
            self._compare(checksums, self._checksums(staged), "its checksum on the wire is not the source's")
            verify_s = time.monotonic() - mark_s
        spent = Spent(verify_s=verify_s)
        for layers, tokens in self._blocks(staged.dtype):
            first, start = layers.start - self._portion.layers.start, tokens.start
            inside = slice(first, first + len(layers))
            block = Portion(layers, self._portion.first_token + start, len(tokens))
            target = self if block == self._portion else Target(self.route, self.pool, self._expected, block)
            values = staged[inside, :, start : tokens.stop]
            some = None if scales is None else scales[inside]
            spent += target._store(values, some, checksums is not None)
        return spent

    def _store(self, staged: torch.Tensor, scales: torch.Tensor | None, verify: bool) -> Spent:
        began_s = time.monotonic()
        part = self._converted(staged, scales)
        converted_s = time.monotonic()
        scatter(part, self.pool, self.at, layers=self._portion.layers, heads=self.route.heads)
        self._settle()
        scattered_s = time.monotonic()
        if verify:
            self._compare(
                self._checksums(part), self._checksums(self._read()), "it does not read as it was written"
            )
        verify_s = time.monotonic() - scattered_s if verify else 0.0
        return Spent(converted_s - began_s, scattered_s - converted_s, verify_s)

    def _converted(self, staged: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        layers = self._portion.layers
        chosen = slice(layers.start, layers.stop)
        wanted = None if self._wanted is None else self._wanted[chosen]
        dtype = self.route.dst.dtype
        if self._result is None:
            return convert(staged, dtype, scales)[0]
        if staged.dtype == self.pool.tensors[0].dtype:
            given = torch.ones_like(self._result[chosen]) if scales is None else scales
            goes_on = self._portion.first_token > 0
            if wanted is None and goes_on and not torch.equal(given, self._result[chosen]):
                raise Refused("fp8 values came in other scales than the tokens before them")
            if wanted is None or torch.equal(given, wanted):
                self._result[chosen].copy_(given)
                return staged
        if wanted is None and self.tokens < self._expected.tokens:
            raise Refused("some of the tokens have no scale that is good for all of them")
        made, found = convert(staged, dtype, scales, wanted)
        assert found is not None
        self._result[chosen].copy_(found)
        return made

    def _blocks(self, dtype: torch.dtype) -> Iterator[tuple[range, range]]:
        """Layers, and tokens of the portion's: as many layers at a time as the cache holds. Tokens of a layer
        too where they are converted and none needs the others for its scale."""
        layers, tokens = self._portion.layers, self.tokens
        layer_bytes = self.nbytes(1, self.route.dst.element_bytes)
        step, each = max(1, BUFFER_BYTES // layer_bytes), tokens
        alone = self._result is None or self._wanted is not None
        if layer_bytes > BUFFER_BYTES and dtype != self.pool.tensors[0].dtype and alone:
            each = max(1, TOKENS_BYTES * tokens // layer_bytes)
        for first in range(layers.start, layers.stop, step):
            for start in range(0, tokens, each):
                yield range(first, min(first + step, layers.stop)), range(start, min(start + each, tokens))

    def _read(self) -> torch.Tensor:
        layers, heads = self._portion.layers, self.route.heads
        staged = gather(self.pool, self.at, self.tokens, layers=layers, heads=heads)
        self._settle()
        return staged

    def _checksums(self, staged: torch.Tensor) -> bytes:
        return page_checksums(staged, self.at.first, self.route.dst.page_size)

    def _check_length(self, checksums: bytes) -> None:
        pages = len(self._pages)
        if len(checksums) != pages * CHECKSUM_BYTES:
            raise Refused(f"{len(checksums)} bytes of checksums for {pages} pages")

    def _compare(self, given: bytes, found: bytes, how: str) -> None:
        index = differing(given, found)
        if index is not None:
            raise Corrupt(
                int(self._pages[index]), f"{how} (rank {self.route.src_rank} to {self.route.dst_rank})"
            )

    def _settle(self) -> None:
        if self.pool.device.type == "cuda":
            torch.cuda.current_stream(self.pool.device).synchronize()
