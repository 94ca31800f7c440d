"""Arrival families: how unevenly requests come at a given mean rate."""

from dataclasses import dataclass
from math import exp, lgamma, log, sqrt
from typing import Literal

import numpy as np

from kvferry.models.workload.base import Floats
from kvferry.models.workload.rate_curve import RateCurve

Family = Literal["poisson", "gamma", "weibull"]
FAMILIES: tuple[Family, ...] = ("poisson", "gamma", "weibull")
BURN_IN = 16.0  # mean gaps before the first arrival, so that time 0 is no arrival by rule


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Independent gaps of a family, with their coefficient of variation (poisson: always 1).

    With `on_s` and `off_s` above 0 the rate itself goes on and off, each for an exponential time of that
    mean; while on it is raised, so that the mean over the whole run stays. ValueError when a figure makes
    no sense.
    """

    family: Family = "poisson"
    cv: float = 1.0
    on_s: float = 0.0
    off_s: float = 0.0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"arrivals: unknown family {self.family!r} (known: {', '.join(FAMILIES)})")
        if not self.cv > 0 or (self.family == "poisson" and self.cv != 1):
            raise ValueError(f"arrivals: {self.family} cannot have cv = {self.cv}")
        if min(self.on_s, self.off_s) < 0 or (self.on_s > 0) != (self.off_s > 0):
            raise ValueError("arrivals: on_s and off_s are both above 0, or both left out")

    def times_s(self, rate: RateCurve, rng: np.random.Generator) -> Floats:
        """Sorted arrival times along a curve."""
        if self.on_s > 0:
            rate = self._switched(rate, rng)
        mass, chunk = rate.mass, 256 + int(1.2 * rate.mass)
        parts: list[Floats] = []
        reached = -BURN_IN
        while reached < mass:
            parts.append(reached + np.cumsum(unit_gaps(self.family, np.full(chunk, self.cv), rng)))
            reached = float(parts[-1][-1])
        operational = np.concatenate(parts) if parts else np.empty(0)
        return rate.times_s(operational[(operational >= 0) & (operational < mass)])

    def _switched(self, rate: RateCurve, rng: np.random.Generator) -> RateCurve:
        start_s, end_s = float(rate.edges_s[0]), float(rate.edges_s[-1])
        on = bool(rng.random() < self.on_s / (self.on_s + self.off_s))
        edges, factors, time_s = [start_s], [], start_s
        while time_s < end_s:
            time_s += rng.exponential(self.on_s if on else self.off_s)
            edges.append(min(time_s, end_s))
            factors.append(float(on))
            on = not on
        switched = rate.modulated(RateCurve(np.array(edges), np.array(factors)))
        if switched.mass <= 0:  # a run shorter than one silence
            return rate
        return RateCurve(switched.edges_s, switched.per_s * (rate.mass / switched.mass))


def unit_gaps(family: Family, cv: Floats, rng: np.random.Generator) -> Floats:
    """Gaps of mean 1, each with its own coefficient of variation.

    gamma: shape 1 / cv^2, scale cv^2. weibull: shape k with cv^2 = G(1 + 2/k) / G(1 + 1/k)^2 - 1, scale
    1 / G(1 + 1/k).
    """
    if family == "poisson":
        return rng.exponential(1.0, len(cv))
    if family == "gamma":
        return rng.gamma(cv**-2.0, cv**2.0)
    shape = np.interp(np.log(cv), WEIBULL_LOG_CV, WEIBULL_SHAPE)
    mean = np.exp(np.interp(np.log(cv), WEIBULL_LOG_CV, WEIBULL_LOG_MEAN))
    return np.asarray(rng.weibull(shape) / mean)


def _weibull_log_cv(shape: float) -> float:
    return log(sqrt(max(1e-12, exp(lgamma(1 + 2 / shape) - 2 * lgamma(1 + 1 / shape)) - 1)))


WEIBULL_SHAPE = np.geomspace(50.0, 0.1, 2000)
WEIBULL_LOG_CV = np.array([_weibull_log_cv(shape) for shape in WEIBULL_SHAPE])
WEIBULL_LOG_MEAN = np.array([lgamma(1 + 1 / shape) for shape in WEIBULL_SHAPE])
