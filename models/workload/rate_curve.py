"""A rate that changes in steps, and the clock that makes it constant."""

from dataclasses import dataclass

import numpy as np

from kvferry.models.workload.base import Floats


@dataclass(frozen=True, slots=True, eq=False)
class RateCurve:
    """`per_s[i]` arrivals per second from `edges_s[i]` to `edges_s[i + 1]`.

    Operational time is the number of arrivals expected so far. Arrivals of mean gap 1 there, mapped
    back, follow the curve and keep their bursts across its steps.
    """

    edges_s: Floats
    per_s: Floats

    @property
    def masses(self) -> Floats:
        """[len(edges_s)] arrivals expected before each edge."""
        return np.concatenate(([0.0], np.cumsum(np.diff(self.edges_s) * self.per_s)))

    @property
    def mass(self) -> float:
        """Arrivals expected in all."""
        return float(self.masses[-1])

    def times_s(self, operational: Floats) -> Floats:
        """Real times of operational ones, which lie in [0, mass)."""
        masses = self.masses
        step = np.clip(np.searchsorted(masses, operational, side="right") - 1, 0, len(self.per_s) - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            into = np.where(self.per_s[step] > 0, (operational - masses[step]) / self.per_s[step], 0.0)
        return np.minimum(self.edges_s[step] + into, self.edges_s[step + 1])

    def modulated(self, other: "RateCurve") -> "RateCurve":
        """This curve times another over the same span."""
        edges = np.union1d(self.edges_s, other.edges_s)
        edges = edges[(edges >= self.edges_s[0]) & (edges <= self.edges_s[-1])]
        return RateCurve(edges, self.at(edges[:-1]) * other.at(edges[:-1]))

    def at(self, times_s: Floats) -> Floats:
        """The rate at times within the curve."""
        step = np.searchsorted(self.edges_s, times_s, side="right") - 1
        return np.asarray(self.per_s[np.clip(step, 0, len(self.per_s) - 1)])
