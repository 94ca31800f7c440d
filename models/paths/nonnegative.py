"""Robust linear regression with coefficients of at least 0."""

import numpy as np

from kvferry.policy.candidates import Floats

ROUNDS = 12
# Residuals below this count as squares: nothing is known to half a percent.
FLOOR = 0.005
_STILL = 1e-10


def least_deviations(matrix: Floats, target: Floats) -> Floats:
    """x >= 0 that minimises sum |matrix x - target|, by reweighted least squares.

    Columns that the others already explain stay 0, the later ones first.
    """
    weights = np.ones(target.size)
    x = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        x = least_squares(matrix * weights[:, None], target * weights)
        weights = 1.0 / np.sqrt(np.maximum(np.abs(matrix @ x - target), FLOOR))
    return x


def least_squares(matrix: Floats, target: Floats) -> Floats:
    """x >= 0 that minimises |matrix x - target|^2 (the active sets of Lawson and Hanson, 1974)."""
    sizes = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(sizes > 0.0, sizes, 1.0)
    gram, moment = scaled.T @ scaled, scaled.T @ target
    x, free = np.zeros(sizes.size), np.zeros(sizes.size, dtype=bool)
    still = _STILL * float(np.abs(moment).max(initial=0.0))
    for _ in range(3 * sizes.size):
        gain = np.where(free | (sizes == 0.0), -np.inf, moment - gram @ x)
        best = float(gain.max())
        if best <= still:
            break
        free[int(np.argmax(gain >= best - still))] = True
        x = _step(gram, moment, x, free)
    return np.asarray(x / np.where(sizes > 0.0, sizes, 1.0), dtype=np.float64)


def _step(gram: Floats, moment: Floats, x: Floats, free: np.ndarray) -> Floats:
    """From x towards the unbounded optimum of the free ones; whichever meets its bound is no longer free."""
    while True:
        at = np.flatnonzero(free)
        wished = np.zeros(x.size)
        wished[at] = np.linalg.lstsq(gram[np.ix_(at, at)], moment[at], rcond=1e-12)[0]
        under = at[wished[at] <= 0.0]
        if not under.size:
            return wished
        drop = x[under] - wished[under]
        share = float(np.min(np.where(drop > 0.0, x[under] / np.where(drop > 0.0, drop, 1.0), 0.0)))
        x = x + share * (wished - x)
        met = under[x[under] <= _STILL]
        free[met if met.size else under[:1]] = False
        x = np.where(free, x, 0.0)
