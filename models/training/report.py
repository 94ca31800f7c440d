"""How far predictions were from what happened, and how often it was within what they promised."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvferry.models.training.rows import F32
from kvferry.policy.correction import TARGETS
from kvferry.policy.features import EPSILON_S


@dataclass(frozen=True, slots=True)
class Score:
    """Of one quantity, over `n` requests for which it was both measured and predicted.

    mdape: median of |p50 - actual| / max(actual, EPSILON_S); mae_s: mean of |p50 - actual|, seconds.
    coverage_*: share of the actual values at or under the predicted quantile, over those requests that had
    one; None where none had. Right is the quantile itself. Without any request all are None.
    """

    mdape: float | None = None
    mae_s: float | None = None
    coverage_p50: float | None = None
    coverage_p90: float | None = None
    coverage_p99: float | None = None
    n: int = 0


def score(actual_s: F32, predicted_s: F32) -> Score:
    """Of [N] measurements and [N, 3] predictions at QUANTILES; NaN: not known."""
    known = np.isfinite(actual_s) & np.isfinite(predicted_s[:, 0])
    if not known.any():
        return Score()
    actual, predicted = actual_s[known].astype(np.float64), predicted_s[known].astype(np.float64)
    off_s = np.abs(predicted[:, 0] - actual)
    p50, p90, p99 = (_coverage(actual, column) for column in predicted.T)
    mdape = float(np.median(off_s / np.maximum(actual, EPSILON_S)))
    return Score(mdape, float(off_s.mean()), p50, p90, p99, len(actual))


def scores(actual_s: F32, predicted_s: F32) -> dict[str, Score]:
    """By target, of [N, 7] measurements and [N, 3, 7] predictions."""
    return {name: score(actual_s[:, place], predicted_s[:, :, place]) for place, name in enumerate(TARGETS)}


def best(baselines: Mapping[str, Mapping[str, Score]], target: str) -> tuple[str, float] | None:
    """The baseline with the smallest median error of a target, and that error; None where none has any."""
    found = [(each[target].mdape, name) for name, each in baselines.items()]
    known = [(mdape, name) for mdape, name in found if mdape is not None]
    return (min(known)[1], min(known)[0]) if known else None


def _coverage(actual: NDArray[np.float64], quantile: NDArray[np.float64]) -> float | None:
    said = np.isfinite(quantile)
    return float((actual[said] <= quantile[said]).mean()) if said.any() else None
