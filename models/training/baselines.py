"""Predictions that need no model of the system: what a learned one must beat."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvferry.models.training.rows import F32, Rows
from kvferry.policy.correction import QUANTILES, TARGETS, TERMS
from kvferry.policy.features import EPSILON_S, FEATURES

Floats = NDArray[np.float64]
WINDOW = 100
_OF_BYTES = ("transfer", "repack", "admission")


def moving_average(earlier: Rows, later: Rows) -> F32:
    """[N, 3, 7] for `later`: the mean of the last 100 measurements before the request, those in `later`
    included. p90 and p99: times what measurements in `earlier` were above it."""
    return _predicted(earlier, later, _average)


def linear_fit(earlier: Rows, later: Rows) -> F32:
    """[N, 3, 7] for `later`: one least-squares fit per target through `earlier`.

    ttft = a + b * new tokens + c * moved bytes; transfer, repack and admission = a + b * moved bytes; queue,
    prefill and itl = a + b * new tokens; not below 0. p90 and p99 as for `moving_average`.
    """
    return _predicted(earlier, later, _line)


def catalogue(rows: Rows) -> F32:
    """[N, 3, 7]: structured predictions without what routers had learned, as far as logs tell; medians only.

    transfer: what the link's own figures said (`policy.unlearned`). Of an older kvferry, which did not log
    that, it is the structured transfer over the link's learned slowness: the factors and the offset that
    were learned stay in. ttft: the sum of the structured terms with that transfer, without what TTFTs were
    late by; the queue's learned base and a learned repack stay in, and so do speeds, here and in what the
    prefill hides. Of the rest nothing is known (NaN).
    """
    out = np.full((len(rows), len(QUANTILES), len(TARGETS)), np.nan, np.float32)
    transfer = TARGETS.index("transfer")
    slowness = np.exp(rows.features[:, FEATURES.index("log_slowness")])
    moved_s = rows.structured_s[:, transfer] / np.maximum(slowness, 1e-6)
    if rows.catalogue_s is not None:
        moved_s = np.where(np.isnan(rows.catalogue_s), moved_s, rows.catalogue_s)
    out[:, 0, transfer] = moved_s
    others = [TARGETS.index(name) for name in TERMS if name != "transfer"]
    terms = np.column_stack([rows.structured_s[:, others], moved_s])
    out[:, 0, TARGETS.index("ttft")] = np.nansum(terms, axis=1)
    return out


# (earlier, later, target) -> predicted medians of both.
_Median = Callable[[Rows, Rows, int], tuple[Floats, Floats]]


def _predicted(earlier: Rows, later: Rows, median: _Median) -> F32:
    out = np.full((len(later), len(QUANTILES), len(TARGETS)), np.nan, np.float32)
    for place in range(len(TARGETS)):
        fitted, predicted = median(earlier, later, place)
        ratio = (earlier.actual_s[:, place].astype(np.float64) + EPSILON_S) / (fitted + EPSILON_S)
        ratio = ratio[np.isfinite(ratio)]
        out[:, 0, place] = predicted
        if len(ratio):
            for row, quantile in enumerate(QUANTILES[1:], 1):
                times = max(1.0, float(np.quantile(ratio, quantile)))
                out[:, row, place] = (predicted + EPSILON_S) * times - EPSILON_S
    return out


def _average(earlier: Rows, later: Rows, place: int) -> tuple[Floats, Floats]:
    actual = np.concatenate([earlier.actual_s[:, place], later.actual_s[:, place]]).astype(np.float64)
    known = np.isfinite(actual)
    sums = np.concatenate([[0.0], np.cumsum(actual[known])])
    before = np.cumsum(known) - known
    first = np.maximum(before - WINDOW, 0)
    with np.errstate(invalid="ignore"):
        mean = (sums[before] - sums[first]) / np.where(before > first, before - first, np.nan)
    return mean[: len(earlier)], mean[len(earlier) :]


def _line(earlier: Rows, later: Rows, place: int) -> tuple[Floats, Floats]:
    actual = earlier.actual_s[:, place].astype(np.float64)
    known = np.flatnonzero(np.isfinite(actual))
    known_x, wanted_x = _inputs(earlier, place), _inputs(later, place)
    if len(known) <= known_x.shape[1]:
        return np.full(len(earlier), np.nan), np.full(len(later), np.nan)
    scale = np.maximum(known_x[known].max(axis=0), 1.0)  # bytes beside ones
    weights = np.linalg.lstsq(known_x[known] / scale, actual[known], rcond=None)[0] / scale
    return np.maximum(known_x @ weights, 0.0), np.maximum(wanted_x @ weights, 0.0)


def _inputs(rows: Rows, place: int) -> Floats:
    """[N, 2 or 3]: one, and tokens or bytes or both."""
    tokens, moved_bytes = (
        np.expm1(rows.features[:, FEATURES.index(name)].astype(np.float64))
        for name in ("log_new_tokens", "log_moved_bytes")
    )
    name = TARGETS[place]
    if name == "ttft":
        return np.column_stack([np.ones(len(rows)), tokens, moved_bytes])
    return np.column_stack([np.ones(len(rows)), moved_bytes if name in _OF_BYTES else tokens])
