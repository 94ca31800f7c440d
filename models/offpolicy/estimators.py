"""What a policy would have got, from what another one did. Each estimate is a ratio of two sums over rows.

With x a request and its cluster, a the mode taken with probability p, r what came of it, pi the policy to be
judged, w = pi(a | x) / p and q(x, a) a prediction of r:

    IPS    sum(w r) / n                              unbiased, of large variance
    SNIPS  sum(w r) / sum(w)                         biased by order 1/n, bounded by what was seen
    DR     sum( sum_a pi(a | x) q(x, a) + w (r - q(x, a)) ) / n     unbiased where p is right or q is; its
           variance is that of IPS of the errors of q

Sources: Horvitz and Thompson 1952; Swaminathan and Joachims 2015; Dudik, Langford and Li 2011; Dudik et al.
2014. Here p is exact, logged with the decision.
"""

from dataclasses import dataclass

import numpy as np

from kvferry.models.offpolicy.logged import Floats, Logged

ESTIMATORS = ("ips", "snips", "dr")


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """An estimate, row by row: sum(top) / sum(bottom)."""

    top: Floats
    bottom: Floats

    @property
    def value(self) -> float:
        bottom = float(self.bottom.sum())
        return float(self.top.sum()) / bottom if bottom else float("nan")


def ips(logged: Logged, value: Floats) -> Ratio:
    return Ratio(logged.weights * value, np.ones(len(logged)))


def snips(logged: Logged, value: Floats) -> Ratio:
    return Ratio(logged.weights * value, logged.weights)


def dr(logged: Logged, value: Floats, outcome: Floats) -> Ratio:
    """`outcome` is q, [2, N]: of both actions, from models that have not seen the row."""
    taken = np.where(logged.split, outcome[1], outcome[0])
    expected = np.where(logged.target > 0.0, logged.target * outcome, 0.0).sum(axis=0)
    return Ratio(expected + logged.weights * (value - taken), np.ones(len(logged)))


def effective_sample_size(weights: Floats) -> float:
    """sum(w)^2 / sum(w^2): as many rows drawn from the judged policy itself would say as much (Kish 1965)."""
    squares = float((weights * weights).sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0
