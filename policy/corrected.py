"""Predictions with what a learned model says of them, where there is one and it knows such plans."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvferry.policy.candidates import Floats
from kvferry.policy.cluster import Cluster
from kvferry.policy.correction import TERMS, Correction
from kvferry.policy.costs import Costs, Estimate
from kvferry.policy.features import EPSILON_S, features
from kvferry.policy.predict import ITL, Prediction, predict
from kvferry.policy.request import Request
from kvferry.policy.unlearned import catalogue_transfer_s


def predicted(request: Request, cluster: Cluster) -> Prediction:
    """`predict`, with TTFT and ITL of every plan times exp of the learned median correction."""
    prediction = predict(request, cluster)
    if cluster.corrector is None or not len(prediction.terms[0]):
        return prediction
    shown = features(request, cluster, prediction)
    correction = cluster.corrector.correct(shown)
    structured = prediction.structured_ttft_s.copy()
    off = np.empty((2, len(structured)))
    np.exp(correction.ttft, out=off[0])
    np.exp(correction.itl, out=off[1])
    if not correction.all_inside:
        off[:, ~correction.inside] = 1.0
    prediction.ttft_s[:] *= off[0]
    prediction.terms[ITL] *= off[1]
    return dataclasses.replace(
        prediction, structured_ttft_s=structured, features=shown, correction=correction
    )


def told(
    costs: list[Costs], rows: Sequence[int], request: Request, cluster: Cluster, prediction: Prediction
) -> list[Costs]:
    """The costs of some plans with what the model was shown of them, its quantiles for every term, and the
    transfer with nothing learned."""
    correction = prediction.correction
    if correction is not None:
        quantiles = correction.quantiles(rows)
        costs = [
            _told(each, row, quantiles[:, :, place], correction, cluster)
            for place, (each, row) in enumerate(zip(costs, rows, strict=True))
        ]

    def shown(row: int) -> Callable[[], dict[str, object]]:
        def work() -> dict[str, object]:
            found = prediction.features
            if found is None:
                found = features(request, cluster, prediction)
            return {
                "features": tuple(round(value, 5) for value in found[:, row].tolist()),
                "catalogue_transfer_s": catalogue_transfer_s(cluster, prediction, row),
            }

        return work

    for each, row in zip(costs, rows, strict=True):
        each.defer(shown(row), "features", "catalogue_transfer_s")
    return costs


def _told(costs: Costs, row: int, quantiles: Floats, correction: Correction, cluster: Cluster) -> Costs:
    if not correction.inside[row]:
        return dataclasses.replace(costs, fallback=correction.why_not(row))
    state, mode = cluster.state, int(cluster.candidates.split[row])
    ttft, itl, *terms = quantiles
    wide = {"transfer": float(state.transfer_wide[0])}
    known: dict[str, Any] = {
        f"{name}_s": _scaled(getattr(costs, f"{name}_s").p50, logs, wide.get(name, 0.0))
        for name, logs in zip(TERMS, terms, strict=True)
        if np.isfinite(logs).all()
    }
    return dataclasses.replace(
        costs,
        ttft_s=_widened(costs.structured_ttft_s, ttft, float(state.ttft_wide[mode])),
        itl_s=_widened(costs.structured_itl_s, itl, float(state.itl_wide[mode])),
        **known,
    )


def _widened(structured_s: float, logs: Floats, wide: float) -> Estimate:
    """Of TTFT and ITL; `wide` is what the 90th percentile has shown to lack of late."""
    p50, p90, p99 = (structured_s * np.exp(logs + np.array((0.0, wide, wide)))).tolist()
    return Estimate(p50, max(p50, p90), max(p50, p90, p99))


def _scaled(structured_s: float, logs: Floats, wide: float) -> Estimate:
    """Of a term, which may be 0: as features, in ln(s + EPSILON_S). `wide` as for `_widened`."""
    logs = logs + np.array((0.0, wide, wide))
    p50, p90, p99 = np.maximum((structured_s + EPSILON_S) * np.exp(logs) - EPSILON_S, 0.0).tolist()
    return Estimate(p50, max(p50, p90), max(p50, p90, p99))
