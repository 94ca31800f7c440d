"""Bootstrap intervals of ratios of sums, from blocks of rows that follow each other.

Requests that follow each other met the same queues, so not rows but blocks of n^(1/3) of them are drawn
(Carlstein 1986). The interval is bias-corrected and accelerated (BCa; Efron 1987), the acceleration from the
jackknife over blocks.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from kvferry.models.offpolicy.estimators import Ratio
from kvferry.models.offpolicy.logged import Floats

DRAWS = 1000
LEVEL = 0.95
AT_ONCE = 1 << 22
_normal = NormalDist()


@dataclass(frozen=True, slots=True)
class Interval:
    value: float
    low: float
    high: float


def block_length(rows: int) -> int:
    return max(1, round(math.cbrt(rows)))


def interval(ratio: Ratio, *, seed: int = 0, draws: int = DRAWS, level: float = LEVEL) -> Interval:
    """The value of a ratio and its interval; the same seed draws the same. NaN without rows."""
    value = ratio.value
    starts = np.arange(0, len(ratio.top), block_length(len(ratio.top)))
    if not len(starts) or not math.isfinite(value):
        return Interval(math.nan, math.nan, math.nan)
    top, bottom = (np.add.reduceat(each, starts) for each in (ratio.top, ratio.bottom))
    drawn = np.sort(_resampled(top, bottom, seed, draws))
    if drawn[0] == drawn[-1]:
        return Interval(value, value, value)
    below = (np.count_nonzero(drawn < value) + 0.5 * np.count_nonzero(drawn == value)) / len(drawn)
    bias = _normal.inv_cdf(min(max(below, 1 / len(drawn)), 1 - 1 / len(drawn)))
    bend = _acceleration(top, bottom)
    low, high = (
        float(np.quantile(drawn, _place(_normal.inv_cdf(share), bias, bend)))
        for share in ((1 - level) / 2, (1 + level) / 2)
    )
    return Interval(value, low, high)


def _resampled(top: Floats, bottom: Floats, seed: int, draws: int) -> Floats:
    """[draws] ratios of as many blocks, drawn with replacement."""
    rng, count = np.random.default_rng(seed), len(top)
    sums = np.column_stack((top, bottom))
    part = max(1, AT_ONCE // count)
    found = []
    for begun in range(0, draws, part):
        size = min(part, draws - begun)
        times = rng.multinomial(count, np.full(count, 1.0 / count), size=size)
        found.append(times @ sums)
    tops, bottoms = np.concatenate(found).T
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = tops / bottoms
    return np.asarray(ratios[np.isfinite(ratios)])


def _acceleration(top: Floats, bottom: Floats) -> float:
    rest = bottom.sum() - bottom
    if (rest == 0.0).any():
        return 0.0
    without = (top.sum() - top) / rest
    off = without.mean() - without
    squares = float((off * off).sum())
    return float((off**3).sum()) / (6.0 * squares**1.5) if squares else 0.0


def _place(quantile: float, bias: float, bend: float) -> float:
    shifted = bias + quantile
    return _normal.cdf(bias + shifted / (1.0 - bend * shifted))
