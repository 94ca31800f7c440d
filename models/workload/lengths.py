"""Distributions of lengths (tokens), counts (turns) and waits (seconds)."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from kvferry.models.workload.base import Floats, Ints


class Lengths(Protocol):
    """Something to draw from. Values are at least 0 and not rounded."""

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """[count] independent values."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    value: float

    def __post_init__(self) -> None:
        _check(0 <= self.value < np.inf, f"{self.value} is not a finite number of at least 0")

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        return np.full(count, float(self.value))


@dataclass(frozen=True, slots=True)
class Uniform:
    low: float
    high: float

    def __post_init__(self) -> None:
        _check(0 <= self.low <= self.high < np.inf, f"uniform from {self.low} to {self.high}")

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        return rng.uniform(self.low, self.high, count)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """median * exp(sigma * Z), cut to [low, high]."""

    median: float
    sigma: float
    low: float = 0.0
    high: float = 1e9

    def __post_init__(self) -> None:
        _check(self.median > 0 and 0 <= self.sigma < 20, f"median {self.median}, sigma {self.sigma}")
        _check(0 <= self.low <= self.high < np.inf, f"low {self.low}, high {self.high}")

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        return np.clip(self.median * np.exp(self.sigma * rng.standard_normal(count)), self.low, self.high)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """`values[i]` is the `levels[i]` quantile; between them the inverse distribution is linear."""

    levels: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        _check(len(self.levels) == len(self.values) >= 2, "as many levels as values, at least two")
        _check(self.levels[0] == 0 and self.levels[-1] == 1, "levels go from 0 to 1")
        _check(all(low < high for low, high in pairwise(self.levels)), "levels do not rise")
        _check(all(low <= high for low, high in pairwise(self.values)), "values fall")
        _check(self.values[0] >= 0 and self.values[-1] < np.inf, "values are not finite or below 0")

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        return np.interp(rng.random(count), self.levels, self.values)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Each value from one of the parts, drawn in proportion to the weights."""

    parts: tuple[Lengths, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        _check(len(self.parts) == len(self.weights) >= 1, "as many weights as parts")
        _check(min(self.weights) >= 0 and 0 < sum(self.weights) < np.inf, f"weights {self.weights}")

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        drawn = np.stack([part.draw(count, rng) for part in self.parts])
        weights = np.array(self.weights) / sum(self.weights)
        return np.asarray(drawn[rng.choice(len(self.parts), count, p=weights), np.arange(count)])


def whole(values: Floats) -> Ints:
    """Rounded."""
    return np.rint(values).astype(np.int64)


def _check(right: bool, what: str) -> None:
    if not right:
        raise ValueError(f"lengths: {what}")
