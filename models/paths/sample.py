"""One measured move, and what repeated ones say together."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvferry.policy.candidates import Floats


@dataclass(frozen=True, slots=True)
class Sample:
    """A move of `moved_bytes` in `descriptors` pieces took `total_s` while `concurrency` were under way.

    Without registration and first contact; `concurrency` counts the move itself. ValueError for what no move
    can be.
    """

    moved_bytes: int
    descriptors: int
    total_s: float
    concurrency: int = 1

    def __post_init__(self) -> None:
        if min(self.moved_bytes, self.descriptors, self.concurrency) < 1:
            raise ValueError(f"no move: {self}")
        if not (math.isfinite(self.total_s) and self.total_s > 0.0):
            raise ValueError(f"a move takes a time: {self}")


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Arrays [n], one place for each pair of bytes and descriptors, in that order; median time of each."""

    moved_bytes: Floats
    descriptors: Floats
    total_s: Floats

    def __len__(self) -> int:
        return int(self.total_s.size)

    def only(self, which: np.ndarray) -> "Cells":
        """The cells of a mask or an index."""
        return Cells(self.moved_bytes[which], self.descriptors[which], self.total_s[which])


def cells(samples: Iterable[Sample]) -> Cells:
    """Moves that had the path to themselves: the median, so that a few odd ones count for nothing."""
    found: dict[tuple[int, int], list[float]] = {}
    for sample in samples:
        if sample.concurrency == 1:
            found.setdefault((sample.moved_bytes, sample.descriptors), []).append(sample.total_s)
    keys = sorted(found)
    return Cells(
        np.array([moved for moved, _ in keys], dtype=np.float64),
        np.array([pieces for _, pieces in keys], dtype=np.float64),
        np.array([float(np.median(found[key])) for key in keys], dtype=np.float64),
    )
