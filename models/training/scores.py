"""How good corrections are: by pinball loss, by error of the median, and by how much each quantile covers."""

import numpy as np
from numpy.typing import NDArray

from kvferry.models.training.rows import F32
from kvferry.policy.correction import QUANTILES

_LEVELS = np.array(QUANTILES, np.float32)[:, np.newaxis]


def pinball(target: F32, predicted: F32) -> float:
    """Mean over requests of the sum over QUANTILES of max(q e, (q - 1) e), e = target - predicted.

    target: [n] logarithms, NaN where unknown; predicted: [3, n]. NaN when none is known.
    """
    known = np.isfinite(target)
    if not known.any():
        return float("nan")
    error = target[known] - predicted[:, known]
    return float(np.maximum(_LEVELS * error, (_LEVELS - 1.0) * error).sum(axis=0).mean())


def scores(target: F32, predicted: F32) -> dict[str, float]:
    """`pinball`, `median_ape` (the median of |predicted / actual - 1|, EPSILON_S on both) and `coverage_p50`,
    `_p90`, `_p99` (the share of requests under that quantile)."""
    known = np.isfinite(target)
    if not known.any():
        return {}
    off: NDArray[np.float64] = np.abs(np.expm1((predicted[0] - target)[known].astype(np.float64)))
    covered = (target <= predicted)[:, known].mean(axis=1).tolist()
    shares = {
        f"coverage_p{quantile * 100:g}": share for quantile, share in zip(QUANTILES, covered, strict=True)
    }
    return {"pinball": pinball(target, predicted), "median_ape": float(np.median(off)), **shares}
