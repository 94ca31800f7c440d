"""Split conformal calibration: how far each quantile was off on requests that a model was not fitted to."""

import math

import numpy as np
from numpy.typing import NDArray

from kvferry.models.residual.manifest import Offsets
from kvferry.models.training.rows import F32
from kvferry.policy.correction import QUANTILES

# A mode has offsets of its own from so many requests on; fewer in all, and nothing is said of a spread.
MIN_OF_MODE = 200
MIN_IN_ALL = 20


def offsets(target: F32, predicted: F32, split: NDArray[np.bool_]) -> tuple[Offsets, Offsets]:
    """What to add to predicted logarithms, for colocated and for split plans.

    target: [n], NaN where unknown; predicted: [3, n] at QUANTILES. For quantile q the ceil((n + 1) q)-th
    smallest of (target - predicted): then a new request of the same kind is under it with a probability of
    at least q (conformalised quantile regression, Romano et al. 2019). For the median their median.
    """
    known = np.isfinite(target)
    both = _offsets(target[known] - predicted[:, known])
    modes = []
    for mode in (False, True):
        here = known & (split == mode)
        own = int(here.sum()) >= MIN_OF_MODE
        modes.append(_offsets(target[here] - predicted[:, here]) if own else both)
    return modes[0], modes[1]


def _offsets(errors: F32) -> Offsets:
    """Of [3, n] errors."""
    count = errors.shape[1]
    if count < MIN_IN_ALL:
        return (0.0, 0.0, 0.0)
    ordered = np.sort(errors, axis=1)
    median = float(np.median(errors[0]))
    upper = [
        float(ordered[place, min(count, math.ceil((count + 1) * quantile)) - 1])
        for place, quantile in enumerate(QUANTILES[1:], 1)
    ]
    return (median, upper[0], upper[1])
