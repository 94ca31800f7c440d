"""All plans of one request, predicted and scored, and how a choice among them becomes a Decision."""

from dataclasses import dataclass

import numpy as np

from kvferry.policy.candidates import Bools
from kvferry.policy.cluster import Cluster
from kvferry.policy.costs import Costs
from kvferry.policy.decision import Decision, NoPlanError, Reason
from kvferry.policy.predict import P90, TTFT, Prediction, costs_of, predict
from kvferry.policy.reasons import REASONS, against, reason_codes
from kvferry.policy.request import Request
from kvferry.policy.score import Scores, score

DEADLINE_FLOOR_S = 10.0
DEADLINE_FACTOR = 4.0
ALTERNATIVES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """`usable` rows are feasible and, where any plan fits, fit. `has_split`/`has_colocated` count them."""

    request: Request
    cluster: Cluster
    prediction: Prediction
    scores: Scores
    usable: Bools
    split: Bools
    colocated: Bools

    @classmethod
    def of(cls, request: Request, cluster: Cluster) -> "Evaluation":
        """Predict and score every plan; raises NoPlanError, with a reason each, when none is usable."""
        table = cluster.candidates
        if not table.plans:
            raise _no_plan(cluster)
        prediction = predict(request, cluster)
        usable = prediction.feasible
        if not usable.all() or not prediction.fits.all():
            fitting = usable & prediction.fits
            usable = fitting if fitting.any() else usable
            if not usable.any():
                raise _no_plan(cluster)
        split = usable & table.split
        return cls(
            request=request,
            cluster=cluster,
            prediction=prediction,
            scores=score(prediction, request.slo, request.expected_output_tokens),
            usable=usable,
            split=split,
            colocated=usable & ~table.split,
        )

    def best(self, among: Bools) -> int:
        """Row of the lowest score in `among`; -1 when it is empty. Ties go to the first key."""
        if not among.any():
            return -1
        return int(np.where(among, self.scores.total, np.inf).argmin())

    def costs(self, row: int) -> Costs:
        return costs_of(
            self.prediction,
            self.cluster,
            row,
            float(self.scores.total[row]),
            float(self.scores.cautious[row]),
        )

    def decide(
        self,
        row: int,
        policy: str,
        reason: Reason | None = None,
        *,
        safe_rule: str = "",
        propensity_mode: float = 1.0,
        propensity_plan: float = 1.0,
    ) -> Decision:
        """The Decision for plan `row`; without a `reason`, the term that decided it is named."""
        table = self.cluster.candidates
        rival = self.best(self.colocated if table.split[row] else self.split)
        codes = reason_codes(self, row)
        if reason is None:
            reason = Reason.ONLY_OPTION if rival < 0 else REASONS[codes[rival]]
        order = np.where(self.usable, self.scores.total, np.inf).argsort(kind="stable")[: ALTERNATIVES + 1]
        others = [int(i) for i in order if i != row and self.usable[i]][:ALTERNATIVES]
        if rival >= 0 and rival not in others:
            others[-1:] = [rival]
        load_time_s = self.cluster.state.load_time_s
        age_s = self.cluster.time_s - min(load_time_s[table.pre[row]], load_time_s[table.dec[row]])
        return Decision(
            plan=table.plans[row],
            reason=reason,
            costs=self.costs(row),
            policy=policy,
            alternatives=tuple((table.plans[i], self.costs(i)) for i in others),
            reasons_against=against(self, row, codes),
            propensity_mode=propensity_mode,
            propensity_plan=propensity_plan,
            safe_rule=safe_rule,
            deadline_s=self.deadline_s(row),
            view_age_s=max(0.0, float(age_s)),
        )

    def deadline_s(self, row: int) -> float:
        """How long the first token may take: four times its pessimistic prediction, at least 10 s."""
        ttft_s = float(self.prediction.terms[TTFT, P90:, row].max())
        return max(DEADLINE_FLOOR_S, DEADLINE_FACTOR * ttft_s)

    @property
    def clear_winner(self) -> int:
        """Row that wins even when its own uncertainty goes against it; -1 when the gain is not clear.

        A mode wins clearly when its best cautious score (half-way from the median to the 90th
        percentile) is under the other mode's best median. Both sides are monotone in the cost of the
        move, so that a dearer link can only turn split to unclear to colocated, never back.
        """
        total, cautious = self.scores.total, self.scores.cautious
        half = 0.5 * (total + cautious)
        split, colocated = self.best(self.split), self.best(self.colocated)
        if split < 0 or colocated < 0:
            return max(split, colocated)
        if np.where(self.split, half, np.inf).min() < total[colocated]:
            return split
        if np.where(self.colocated, half, np.inf).min() < total[split]:
            return colocated
        return -1


def _no_plan(cluster: Cluster) -> NoPlanError:
    table = cluster.candidates
    reasons = {key: f"{code.value}: {text}" for key, (code, text) in table.impossible.items()}
    reasons |= {key: Reason.EXCLUDED.value for key in table.keys}
    if not table.workers:
        return NoPlanError("no worker is known", reasons)
    counts = {}
    for text in reasons.values():
        counts[text] = counts.get(text, 0) + 1
    told = "; ".join(f"{text} ({count} plans)" for text, count in sorted(counts.items())) or (
        "a prefill worker needs a decode worker, and the other way round"
    )
    return NoPlanError(f"no plan can run this request: {told}", reasons)
