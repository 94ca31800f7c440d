"""What a gather reads or a scatter writes: layers, heads and tokens of a pool."""

from dataclasses import dataclass

import numpy as np

from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import Ints, PoolSpec


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """`tokens` tokens at `at`, in the layers `layers` and the model's heads `heads` (all in the pool)."""

    spec: PoolSpec
    at: Place
    tokens: int
    layers: range
    heads: range

    @classmethod
    def of(
        cls,
        spec: PoolSpec,
        at: Place,
        tokens: int,
        layers: range | None = None,
        heads: range | None = None,
        written: bool = False,
    ) -> "Selection":
        """Impossible where something of it is not in the pool or, `written`, a page is there twice."""
        every = range(spec.first_head, spec.first_head + spec.heads)
        layers = range(spec.layers) if layers is None else layers
        heads = every if heads is None else heads
        for name, wanted, held in (("layers", layers, range(spec.layers)), ("heads", heads, every)):
            if not wanted or wanted.step != 1 or wanted.start < held.start or wanted.stop > held.stop:
                raise Impossible(f"{name} {wanted} are not in the pool, which holds {held}")
        if tokens < 1:
            raise Impossible(f"{tokens} tokens to copy, must be at least 1")
        at.check(spec, tokens, "pool", written)
        return cls(spec, at, tokens, layers, heads)

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Of the staged form, [layer, K/V, token, head, element]."""
        return (len(self.layers), 2, self.tokens, len(self.heads), self.spec.head_dim)

    @property
    def skipped(self) -> int:
        """Tokens of the first page that come before the selection."""
        return self.at.first % self.spec.page_size

    @property
    def pages(self) -> Ints:
        return self.at.used(self.spec.page_size, self.tokens)

    @property
    def runs(self) -> tuple[tuple[int, int, int, int], ...]:
        """(page, first token in it, first token in the staged form, tokens): the pages taken in part."""
        size, pages = self.spec.page_size, self.pages
        head = min((size - self.skipped) % size, self.tokens)
        tail = (self.tokens - head) % size
        runs = []
        if head:
            runs.append((int(pages[0]), self.skipped, 0, head))
        if tail:
            runs.append((int(pages[-1]), 0, self.tokens - tail, tail))
        return tuple(runs)

    @property
    def whole(self) -> tuple[Ints, int]:
        """(Pages taken as a whole, the staged form's first token of them)."""
        size = self.spec.page_size
        head = min((size - self.skipped) % size, self.tokens)
        full = (self.tokens - head) // size
        first = 1 if head else 0
        return np.ascontiguousarray(self.pages[first : first + full]), head
