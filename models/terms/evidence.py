"""What samples say of the coefficients of a small linear regression, as sums that add up in any order."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kvferry.policy.candidates import Floats, Ints

MOST_INPUTS = 8
MOST = 1e30


@dataclass(frozen=True, slots=True)
class Sums:
    """Of samples (x, y, weight w) with n inputs: the upper triangle of sum w x x' by rows, sum w x, ... in

        values = (w x_0 x_0, w x_0 x_1, .., w x_n-1 x_n-1 | w x_0 y, .., w x_n-1 y | w y y | h)

    where h counts samples, each by how far it is believed (0 to 1). `time_s` (Unix seconds): up to when they
    have been faded, that is when the latest was taken. Sums of k routers, added, are those of one router
    that took all their samples: fading is exponential, so that neither order nor grouping matters. Clocks
    differ: what seems to come from the future is as old as nothing.
    """

    size: int
    values: tuple[float, ...]
    time_s: float = 0.0

    @classmethod
    def none(cls, size: int) -> "Sums":
        return cls(size, (0.0,) * length(size))

    @classmethod
    def of(cls, x: Sequence[float], y: float, weight: float, count: float, time_s: float) -> "Sums":
        """One sample. ValueError when a sum would not be finite, or a weight is negative."""
        values = [weight * a * b for place, a in enumerate(x) for b in x[place:]]
        values += [weight * a * y for a in x]
        values += [weight * y * y, count]
        return cls.checked(len(x), values, time_s)

    @classmethod
    def checked(cls, size: int, values: Sequence[float], time_s: float) -> "Sums":
        """What may have come over the network. ValueError where it cannot be such sums."""
        if not 1 <= size <= MOST_INPUTS or len(values) != length(size):
            raise ValueError(f"{len(values)} sums for {size} inputs")
        if not all(-MOST < value < MOST for value in values) or not math.isfinite(time_s):
            raise ValueError("sums must be finite")
        place = 0
        for row in range(size):  # squares, and the count
            if values[place] < 0.0:
                raise ValueError("a sum of squares is negative")
            place += size - row
        if values[-1] < 0.0 or values[-2] < 0.0:
            raise ValueError("a sum of squares, or a count, is negative")
        return cls(size, tuple(values), time_s)

    @property
    def count(self) -> float:
        """How many samples of now they are worth."""
        return self.values[-1]

    def times(self, factor: float) -> "Sums":
        """As if each sample weighed `factor` times as much."""
        return Sums(self.size, tuple([factor * value for value in self.values]), self.time_s)

    def faded(self, to_s: float, half_life_s: float) -> "Sums":
        """As they weigh at `to_s`."""
        age_s = to_s - self.time_s
        if age_s <= 0.0:
            return self
        factor = 2.0 ** (-age_s / half_life_s)
        return Sums(self.size, tuple([factor * value for value in self.values]), to_s)

    def plus(self, other: "Sums", half_life_s: float) -> "Sums":
        """Both, as they weigh at the later one's time."""
        time_s = max(self.time_s, other.time_s)
        mine, theirs = self.faded(time_s, half_life_s), other.faded(time_s, half_life_s)
        both = zip(mine.values, theirs.values, strict=True)
        return Sums(self.size, tuple([a + b for a, b in both]), time_s)


def length(size: int) -> int:
    """How many sums there are for `size` inputs."""
    return size * (size + 1) // 2 + size + 2


def moments(values: Floats, size: int) -> tuple[Floats, Floats]:
    """Of sums [K, length(size)]: sum w x x' [K, n, n] and sum w x y [K, n]."""
    first = size * (size + 1) // 2
    return values[:, _square(size)], values[:, first : first + size]


@lru_cache
def _square(size: int) -> Ints:
    """Where in the upper triangle by rows an entry of the whole matrix stands."""
    at = np.zeros((size, size), dtype=np.intp)
    upper = np.triu_indices(size)
    at[upper] = np.arange(len(upper[0]))
    return np.maximum(at, at.T)
