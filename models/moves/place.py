"""Where the tokens of one move lie on one side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.pool_spec import Ints, PoolSpec


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The pages of a sequence in its order, the same on every rank of a worker.

    The move's first token is token `first` of what the pages hold: what lies before is not touched (a
    prefix that decode has already, or the chunks of a prefill that went before).
    """

    pages: Ints
    first: int = 0

    @classmethod
    def of(cls, pages: Sequence[int] | npt.ArrayLike, first: int = 0) -> "Place":
        return cls(np.asarray(pages, dtype=np.int64).reshape(-1), first)

    def used(self, page_size: int, tokens: int) -> Ints:
        """The pages that hold the move's tokens."""
        return self.pages[self.first // page_size : -(-(self.first + tokens) // page_size)]

    def check(self, pool: PoolSpec, tokens: int, side: str, written: bool) -> None:
        """Impossible where tokens lie outside the pages or pages outside the pool, or, where the pages
        are written, where one of them is there twice."""
        if self.first < 0:
            raise Impossible(f"{side}: first token is {self.first}, must not be negative")
        needed = -(-(self.first + tokens) // pool.page_size)
        if needed > len(self.pages):
            raise Impossible(
                f"{side}: {len(self.pages)} pages of {pool.page_size} tokens, {needed} needed "
                f"for {tokens} tokens from token {self.first}"
            )
        used = self.used(pool.page_size, tokens)
        outside = (used < 0) | (used >= pool.pages)
        if outside.any():
            raise Impossible(f"{side}: page {used[outside][0]} is outside a pool of {pool.pages} pages")
        if written and len(used):
            ordered = np.sort(used)
            twice = ordered[1:][ordered[1:] == ordered[:-1]]
            if len(twice):
                raise Impossible(f"{side}: page {twice[0]} is given twice")
