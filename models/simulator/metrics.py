"""What a simulated run came to, in numbers; and what several seeds say together."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvferry.models.simulator.run import Run
from kvferry.models.simulator.spec import SLORule
from kvferry.models.workload.base import Floats
from kvferry.policy.worker import Role

Figures = dict[str, float | None]

# In the order in which they are printed. The first ten are the contract of `simulate --json`.
NAMES = (
    "goodput_rps",
    "slo_attainment",
    "ttft_p50_s",
    "ttft_p99_s",
    "itl_p50_s",
    "itl_p99_s",
    "e2e_p50_s",
    "split_share",
    "moved_bytes",
    "regret_mean",
    "fair_goodput_rps",
    "fair_attainment",
    "ttft_p90_s",
    "itl_p90_s",
    "e2e_p90_s",
    "e2e_p99_s",
    "loss_mean",
    "ttft_error_median",
    "itl_error_median",
    "transfer_error_median",
    "cached_share",
    "rescued",
    "failed",
    "retractions",
    "requests",
    "offered_rps",
)
KINDS = ("split", "colocated", "local_prefill", "unplaced")
RESAMPLES = 2000
BINS = 60


def figures(run: Run, slo: SLORule) -> Figures:
    """The figures of one run; null where nothing was there to measure, or another run is needed.

    Quantiles of TTFT and E2E are over requests that have one, of ITL over those with two tokens or more:
    read them beside `failed`. `loss_mean` is the mean SLO loss: 1 for a request that missed an objective or
    failed, else 0. `*_error_median` is the median of |predicted / actual - 1|. `moved_bytes`, `rescued`
    (requests that needed a second plan), `failed` and `retractions` are totals.
    """
    talked = run.ok & (run.output_tokens > 1)
    moved = run.ok & run.split & (run.transfer_s > 0)
    placed = run.dec >= 0
    met, fair = (run.attainment(slo), run.fair_attainment(slo)) if len(run) else (None, None)
    return {
        **{name: None for name in NAMES},
        "slo_attainment": met,
        "fair_attainment": fair,
        "loss_mean": None if met is None else 1.0 - met,
        **_quantiles("ttft", run.ttft_s),
        **_quantiles("itl", run.itl_s[talked]),
        **_quantiles("e2e", run.e2e_s[run.ok]),
        "split_share": _mean(run.split[placed]),
        "moved_bytes": float(run.moved_bytes.sum()),
        "ttft_error_median": _error(run.predicted_ttft_s[run.ok], run.ttft_s[run.ok]),
        "itl_error_median": _error(run.predicted_itl_s[talked], run.itl_s[talked]),
        "transfer_error_median": _error(run.predicted_transfer_s[moved], run.transfer_s[moved]),
        "cached_share": float(run.cached_tokens.sum() / max(1, run.prompt_tokens.sum()))
        if len(run)
        else None,
        "rescued": float((run.rescued > 0).sum()),
        "failed": float((~run.ok).sum()),
        "retractions": float(run.retractions),
        "requests": float(len(run)),
        "offered_rps": len(run) / float(run.arrival_s[-1]) if len(run) and run.arrival_s[-1] > 0 else None,
    }


def with_regret(own: Figures, best: Figures | None) -> Figures:
    """`regret_mean`: mean SLO loss less that of the oracle on the same requests; null without an oracle."""
    if best is None or own["loss_mean"] is None or best["loss_mean"] is None:
        return own
    return {**own, "regret_mean": own["loss_mean"] - best["loss_mean"]}


def pool(rows: Sequence[Figures], seed: int = 0) -> dict[str, Any]:
    """Means over seeds, and under `intervals` 95% bootstrap intervals of those means.

    A figure that a seed lacks is averaged over the others. Seeds are resampled, not requests: requests of
    one run hang together. `intervals` is empty for a single seed.
    """
    pooled: dict[str, Any] = {}
    intervals: dict[str, list[float]] = {}
    for name in NAMES:
        values = np.array([value for row in rows if (value := row.get(name)) is not None])
        pooled[name] = float(values.mean()) if len(values) else None
        if len(values) > 1:
            rng = np.random.default_rng(seed)
            means = values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
            intervals[name] = [float(bound) for bound in np.quantile(means, (0.025, 0.975))]
    return {**pooled, "seeds": len(rows), "intervals": intervals}


def summary(
    runs: Sequence[Run], slo: SLORule, oracle: Sequence[Run] | None = None, seed: int = 0
) -> dict[str, Any]:
    """The pooled figures of one policy; `oracle`: its runs with the same seeds, in the same order."""
    best: Sequence[Run | None] = oracle if oracle is not None else [None] * len(runs)
    rows = [
        with_regret(figures(run, slo), figures(other, slo) if other is not None else None)
        for run, other in zip(runs, best, strict=True)
    ]
    return pool(rows, seed)


def timeline(run: Run, roles: Mapping[str, Role], duration_s: float, bins: int = BINS) -> dict[str, Any]:
    """Requests by time of arrival and by where they ended: [bins] counts for each of KINDS."""
    local = np.array([roles[worker] is Role.DECODE for worker in run.workers], dtype=bool)
    placed = run.dec >= 0
    on_decode = np.zeros(len(run), dtype=bool)
    on_decode[placed] = local[run.dec[placed]]
    masks = (
        placed & run.split,
        placed & ~run.split & ~on_decode,
        placed & ~run.split & on_decode,
        ~placed,
    )
    edges = np.linspace(0.0, max(duration_s, 1e-9), bins + 1)
    counts = [np.histogram(run.arrival_s[mask], edges)[0].tolist() for mask in masks]
    return {"edges_s": edges.tolist(), **dict(zip(KINDS, counts, strict=True))}


def _quantiles(name: str, values: Floats) -> Figures:
    known = values[np.isfinite(values)]
    if not len(known):
        return {f"{name}_p{percent}_s": None for percent in (50, 90, 99)}
    found = np.quantile(known, (0.5, 0.9, 0.99))
    return {f"{name}_p{percent}_s": float(value) for percent, value in zip((50, 90, 99), found, strict=True)}


def _error(predicted: Floats, actual: Floats) -> float | None:
    known = np.isfinite(predicted) & np.isfinite(actual) & (actual > 0)
    return float(np.median(np.abs(predicted[known] / actual[known] - 1.0))) if known.any() else None


def _mean(values: Any) -> float | None:
    return float(values.mean()) if len(values) else None
