"""Bayesian linear regression with bounds, for many small problems at once."""

import math
from dataclasses import dataclass

import numpy as np

from kvferry.policy.candidates import Floats

# Relative noise of one measured time: what two alike moves, or prompts, differ by.
NOISE = 0.2
# Beyond so many standard deviations a sample's pull no longer grows (Huber), beyond those it has none.
HUBER = 2.0
ODD = 6.0


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """Coefficients: mean [n] and covariance [n, n]; `count`: samples behind them."""

    mean: Floats
    covariance: Floats
    count: float = 0.0

    def predict(self, x: Floats) -> tuple[float, float]:
        """(mean, standard deviation) of x . coefficients, without the noise of a sample."""
        return float(x @ self.mean), math.sqrt(max(0.0, float(x @ self.covariance @ x)))


def solve(precision: Floats, gram: Floats, moment: Floats, low: Floats) -> tuple[Floats, Floats]:
    """Posterior means [K, n], none under `low`, and covariances [K, n, n] of u ~ N(0, inverse precision).

        A = precision + gram,   mean = A^-1 moment,   covariance = A^-1

    Where that is under a bound, the coefficient is put there and the others are solved for again: at most n
    times, as one never leaves its bound again.
    """
    whole = precision + gram
    covariance = np.asarray(np.linalg.inv(whole), dtype=np.float64)
    mean: Floats = np.einsum("kij,kj->ki", covariance, moment)
    stuck = mean < low
    for _ in range(mean.shape[1]):
        if not stuck.any():
            break
        rest = np.where(stuck[:, :, None] | stuck[:, None, :], 0.0, whole)
        places = np.arange(mean.shape[1])
        rest[:, places, places] += stuck
        at = np.where(stuck, low, 0.0)
        right = np.where(stuck, low, moment - np.einsum("kij,kj->ki", whole, at))
        mean = np.linalg.solve(rest, right[:, :, None])[:, :, 0]
        below = mean < low - 1e-12
        if not below.any():
            break
        stuck = stuck | below
    np.maximum(mean, low, out=mean)
    return mean, covariance


def doubt(seen: float, expected: float, sd: float, jitter: float) -> tuple[float, float]:
    """(z, scale^2) of a positive quantity: how many standard deviations it is off, and what one unit of
    relative noise is there, squared.

    Relative to the geometric mean of both, so that ten times as much and a tenth are equally odd.
    `jitter`: absolute noise, in the unit of both.
    """
    scale = max(seen, jitter) * max(expected, jitter) + (jitter / NOISE) ** 2
    return (seen - expected) / math.sqrt(sd * sd + NOISE * NOISE * scale), scale


def pull(z: float, *, settled: bool) -> float:
    """How far a sample is believed, 0 to 1. `settled`: others have said what to expect."""
    off = abs(z)
    if off <= HUBER:
        return 1.0
    return 0.0 if settled and off > ODD else HUBER / off
