"""What another policy would have got, from the log of this one: every logged decision is taken again by it,
in the cluster as it was, and what came of those it agrees with is weighed by how likely they were."""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from kvferry.integrations.learning.target import Target
from kvferry.integrations.log.record import NEVER_S, DecisionRecord, Outcome, Terms
from kvferry.integrations.log.replay import NoPictureError, Replay
from kvferry.integrations.registry.loss import missed
from kvferry.models.offpolicy.logged import MEASURES, SHOWN, Logged
from kvferry.models.offpolicy.verdict import ASSUMPTIONS, Verdict, judge
from kvferry.policy.decision import NoPlanError
from kvferry.policy.plan import Mode
from kvferry.policy.score import MIN_SLO_S


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """`left_out`: why records say nothing, and of how many that is true. `trained_on`: how many of the others
    the policy's own model was made from."""

    name: str
    version: str
    verdict: Verdict
    left_out: Mapping[str, int] = field(default_factory=dict)
    trained_on: int = 0

    def told(self) -> dict[str, Any]:
        """For JSON. `ips`, `snips` and `dr` are of the share of requests that meet their objectives, those of
        mean TTFT and mean ITL under `ttft_s` and `itl_s`; null where there is no estimate (`unmeasured`: why
        of that measure alone)."""
        verdict = self.verdict
        estimates: dict[str, dict[str, Any] | None] = {
            measure: {name: asdict(found) for name, found in verdict.estimates[measure].items()}
            if measure in verdict.estimates
            else None
            for measure in MEASURES
        }
        attainment = estimates.pop("slo_attainment") or dict.fromkeys(("ips", "snips", "dr"))
        return {
            "name": self.name,
            "model_version": self.version,
            **attainment,
            **estimates,
            "effective_sample_size": round(verdict.effective_sample_size, 1),
            "decisions": verdict.decisions,
            "split_share": verdict.split_share,
            "unknown_share": verdict.unknown_share,
            "logged": dict(verdict.logged),
            "refused": verdict.refused or None,
            "unmeasured": dict(verdict.unmeasured),
            "trained_on": self.trained_on,
            "assumptions": list(ASSUMPTIONS),
            "left_out": dict(self.left_out),
        }


def evaluate_policy(
    records: Iterable[DecisionRecord],
    clusters: Mapping[str, bytes],
    target: Target,
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> PolicyResult:
    """Judge `target` by `records`, in the order of time. `clusters`: `ReadReport.clusters`, which may grow
    while records are read. `progress` is told how many are done. `seed` draws the intervals."""
    times_s = array("d")
    logged, left_out = collect(records, clusters, target, progress, times_s)
    known = sum(time_s <= target.trained_until_s for time_s in times_s)
    return PolicyResult(target.policy.name, target.version, judge(logged, seed=seed), left_out, known)


def collect(
    records: Iterable[DecisionRecord],
    clusters: Mapping[str, bytes],
    target: Target,
    progress: Callable[[int], None] = lambda done: None,
    times_s: "array[float] | None" = None,
) -> tuple[Logged, Counter[str]]:
    """The decisions that say something, and the others counted by reason. `times_s` gets when those were."""
    again, left_out = Replay(clusters), Counter[str]()
    rows = array("d")
    for done, record in enumerate(records, 1):
        if done % 200 == 0:
            progress(done)
        row = _row(record, again, target)
        if isinstance(row, str):
            left_out[row] += 1
        else:
            rows.extend(row)
            if times_s is not None:
                times_s.append(record.time)
    width = 3 + 2 * len(SHOWN) + len(MEASURES)
    table = np.frombuffer(rows, dtype=np.float64).reshape(-1, width).T
    shown = table[3 : 3 + 2 * len(SHOWN)].reshape(2, len(SHOWN), -1).transpose(0, 2, 1)
    values = dict(zip(MEASURES, table[-len(MEASURES) :], strict=True))
    return Logged(table[0] > 0.0, table[1], table[2], shown, values), left_out


def _row(record: DecisionRecord, again: Replay, target: Target) -> list[float] | str:
    """split, propensity, target's probability of a split, SHOWN by action, MEASURES; or why not."""
    outcome = record.outcome
    if record.mode == "shadow":
        return "shadow"
    if outcome is None or outcome.status in ("cancelled", "rejected"):
        return outcome.status if outcome else "no_outcome"
    if not 0.0 < record.propensity.mode <= 1.0:
        return "no_chance_of_what_was_done"
    if record.picture is None:
        return "no_picture"
    try:
        decision = target.decide(*again(record))
    except NoPictureError:
        return "picture_unreadable"
    except NoPlanError:
        return "no_plan"
    split = record.chosen.mode == "split"
    would = decision.mode is Mode.SPLIT
    chance = decision.propensity_mode if would else 1.0 - decision.propensity_mode
    modes = [_shown(record, _best(record, mode)) for mode in ("colocated", "split")]
    return [float(split), record.propensity.mode, chance, *modes[0], *modes[1], *_values(record, outcome)]


def _best(record: DecisionRecord, mode: str) -> Terms | None:
    """What was predicted of the best plan of a mode, whichever was taken: were it that of the plan that was
    drawn where the mode was taken, and of the best one elsewhere, doubly robust estimates would be biased."""
    chosen = record.chosen
    known = [(chosen.score, record.terms)] if chosen.mode == mode else []
    known += [(one.score, one.terms) for one in record.alternatives if one.plan.startswith(f"{mode}:")]
    return min(known, key=lambda each: each[0])[1] if known else None


def _shown(record: DecisionRecord, terms: Terms | None) -> list[float]:
    if terms is None or not max(terms.ttft_s.p50, terms.itl_s.p50) < NEVER_S:
        return [math.nan] * len(SHOWN)  # as where there is no plan: of what never ends there is no mean
    request = record.request
    ttft_s, itl_s = terms.ttft_s.p50, terms.itl_s.p50
    return [
        ttft_s,
        itl_s,
        ttft_s / max(request.slo.ttft_s, MIN_SLO_S),
        itl_s / max(request.slo.itl_s, MIN_SLO_S),
        math.log1p(request.prompt_tokens),
        math.log1p(request.expected_output_tokens),
    ]


def _values(record: DecisionRecord, outcome: Outcome) -> list[float]:
    """MEASURES; a request that failed has no times."""
    lost = missed(record.request, outcome)
    times_s = (outcome.ttft_s, outcome.itl_s) if outcome.status == "ok" else (None, None)
    return [
        math.nan if lost is None else float(not lost),
        *(math.nan if seconds is None else seconds for seconds in times_s),
    ]
