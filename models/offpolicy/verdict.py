"""All estimates of one policy from one log."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kvferry.models.offpolicy.estimators import dr, effective_sample_size, ips, snips
from kvferry.models.offpolicy.interval import DRAWS, Interval, block_length, interval
from kvferry.models.offpolicy.logged import MEASURES, Logged
from kvferry.models.offpolicy.outcome import outcome
from kvferry.models.offpolicy.overlap import refusal, unknown_share, unmeasured

ASSUMPTIONS = (
    "an action is the mode: within it, workers are those that the log's policy chose or would have chosen",
    "each request is judged in the cluster as it was: had the policy served all of them, queues would differ",
    "what is not known of a request (cancelled, not streamed) does not depend on its mode",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`estimates`: measure -> estimator -> value with its 95% interval; empty when `refused` says why.
    `logged`: measure -> mean of what the log's own policy got. `unknown_share`: of the judged policy's
    choices, those that had no chance in the log and rest on the outcome model. `unmeasured`: measures that
    have no estimate though the rest has, and why."""

    decisions: int
    effective_sample_size: float
    unknown_share: float
    split_share: float
    logged: Mapping[str, float]
    refused: str = ""
    estimates: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    unmeasured: Mapping[str, str] = field(default_factory=dict)


def judge(logged: Logged, *, seed: int = 0, draws: int = DRAWS) -> Verdict:
    """Estimate every measure by every estimator, or say why not. The same seed gives the same intervals."""
    refused = refusal(logged)
    found: dict[str, dict[str, Interval]] = {}
    own: dict[str, float] = {}
    without: dict[str, str] = {}
    for measure in MEASURES:
        known = np.isfinite(logged.values[measure])
        if not known.any():
            continue
        rows = logged if known.all() else logged.only(known)
        value = rows.values[measure]
        own[measure] = float(value.mean())
        if refused:
            continue
        if not known.all() and (why := unmeasured(logged, known)):
            without[measure] = why
            continue
        model = outcome(rows, value, measure, block_length(len(rows)))
        ratios = {"ips": ips(rows, value), "snips": snips(rows, value), "dr": dr(rows, value, model)}
        found[measure] = {name: interval(ratio, seed=seed, draws=draws) for name, ratio in ratios.items()}
    return Verdict(
        decisions=len(logged),
        effective_sample_size=effective_sample_size(logged.weights),
        unknown_share=unknown_share(logged),
        split_share=float(logged.target_split.mean()) if len(logged) else 0.0,
        logged=own,
        refused=refused,
        estimates=found,
        unmeasured=without,
    )
