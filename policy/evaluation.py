"""All plans of one request, predicted and scored, and how a choice among them becomes a Decision."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from kvferry.policy.candidates import Bools, Floats
from kvferry.policy.cluster import Cluster
from kvferry.policy.costs import Costs
from kvferry.policy.decision import Decision, NoPlanError, Reason
from kvferry.policy.plan import Plan
from kvferry.policy.predict import Prediction, costs_of, predict
from kvferry.policy.reasons import REASONS, against, no_rival, reason_codes
from kvferry.policy.request import Request
from kvferry.policy.score import Scores, score
from kvferry.policy.worker import Role

# The first token may take four times its pessimistic prediction, and at least 10 s.
DEADLINE_FLOOR_S = 10.0
DEADLINE_FACTOR = 4.0
ALTERNATIVES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """`usable` rows are feasible and, where any plan fits, fit; `ranked` is their score, else infinity."""

    request: Request
    cluster: Cluster
    prediction: Prediction
    scores: Scores
    usable: Bools
    all_usable: bool
    ranked: Floats

    @classmethod
    def of(cls, request: Request, cluster: Cluster) -> "Evaluation":
        """Predict and score every plan; raises NoPlanError, with a reason each, when none is usable."""
        table = cluster.candidates
        if not table.plans:
            raise _no_plan(cluster)
        prediction = predict(request, cluster)
        scores = score(prediction, table, request.slo)
        if prediction.feasible is table.every and prediction.fits is table.every:
            return cls(request, cluster, prediction, scores, table.every, True, scores.total)
        usable = prediction.feasible & prediction.fits
        if not usable.any():
            # Too large by our count for every worker: the worker's own refusal is the exact one.
            usable = prediction.feasible
            if not usable.any():
                raise _no_plan(cluster)
        every = cls(request, cluster, prediction, scores, usable, False, scores.total)
        return every.only(usable)

    def only(self, rows: Bools) -> "Evaluation":
        """This evaluation with no other than the usable plans in `rows`."""
        usable = self.usable & rows
        ranked = np.where(usable, self.scores.total, np.inf)
        return replace(self, usable=usable, all_usable=bool(usable.all()), ranked=ranked)

    @property
    def split(self) -> Bools:
        return self.usable & self.cluster.candidates.split

    @property
    def colocated(self) -> Bools:
        return self.usable & ~self.cluster.candidates.split

    @property
    def best_colocated(self) -> int:
        """Row of the lowest score among usable colocated plans, the first on ties; -1: there is none."""
        return _lowest(self.ranked[: self.cluster.candidates.colocated_count])

    @property
    def best_split(self) -> int:
        """As `best_colocated`, among splits."""
        count = self.cluster.candidates.colocated_count
        row = _lowest(self.ranked[count:])
        return row if row < 0 else row + count

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
        rival = self.best_colocated if row >= table.colocated_count else self.best_split
        codes = reason_codes(self, row)
        if rival < 0:
            reason = no_rival(self, row)
        elif reason is None:
            reason = REASONS[codes[rival]]
        others = self._others(row, rival)
        (costs,) = costs_of(self.prediction, self.cluster, [row], self.scores.both)
        load_time_s = self.cluster.state.load_time_s
        age_s = self.cluster.time_s - min(load_time_s[table.pre[row]], load_time_s[table.dec[row]])
        return Decision(
            plan=table.plans[row],
            reason=reason,
            costs=costs,
            policy=policy,
            alternatives=Alternatives(self, others),
            reasons_against=against(self, row, codes, reason),
            propensity_mode=propensity_mode,
            propensity_plan=propensity_plan,
            safe_rule=safe_rule,
            deadline_s=max(DEADLINE_FLOOR_S, DEADLINE_FACTOR * costs.ttft_s.p90),
            view_age_s=max(0.0, float(age_s)),
        )

    def clear_winner(self, split: int, colocated: int, min_gain: float = 0.0) -> int:
        """Of the best row of each mode the one that wins even when its own uncertainty goes against it.

        A mode wins clearly when its best cautious score (half-way from the median to the 90th
        percentile) is under the other mode's best median, a split by at least `min_gain` (in score);
        -1 when neither does. Both sides are monotone in the cost of the move, so that a dearer link can
        only turn split to unclear to colocated, never back.
        """
        count, total = self.cluster.candidates.colocated_count, self.ranked
        half = 0.5 * (total + self.scores.cautious)
        if half[count + half[count:].argmin()] + min_gain < total[colocated]:
            return split
        if half[half[:count].argmin()] < total[split]:
            return colocated
        return -1

    def _others(self, row: int, rival: int) -> list[int]:
        """The best alternatives in order of score, the other mode's best always among them."""
        order = self.ranked.argsort(kind="stable")[: ALTERNATIVES + 1].tolist()
        others = [i for i in order if i != row and self.usable[i]][:ALTERNATIVES]
        if rival >= 0 and rival not in others:
            others[ALTERNATIVES - 1 :] = [rival]
        return others


class Alternatives(Sequence[tuple[Plan, Costs]]):
    """Plans that were not taken, best first; their costs are worked out when the log asks for them."""

    __slots__ = ("_evaluation", "_found", "_rows")

    def __init__(self, evaluation: Evaluation, rows: Sequence[int]) -> None:
        self._evaluation = evaluation
        self._rows = rows
        self._found: tuple[tuple[Plan, Costs], ...] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> tuple[Plan, Costs]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[tuple[Plan, Costs]]: ...
    def __getitem__(self, place: int | slice) -> tuple[Plan, Costs] | Sequence[tuple[Plan, Costs]]:
        if self._found is None:
            whole = self._evaluation
            costs = costs_of(whole.prediction, whole.cluster, self._rows, whole.scores.both)
            plans = [whole.cluster.candidates.plans[row] for row in self._rows]
            self._found = tuple(zip(plans, costs, strict=True))
        return self._found[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def _lowest(ranked: Floats) -> int:
    if not len(ranked):
        return -1
    row = int(ranked.argmin())
    return row if ranked[row] < np.inf else -1


def _no_plan(cluster: Cluster) -> NoPlanError:
    table = cluster.candidates
    if not table.workers:
        return NoPlanError("no worker is known")
    reasons = {key: f"{code.value}: {text}" for key, (code, text) in table.impossible.items()}
    reasons |= {key: f"{Reason.EXCLUDED.value}: already tried" for key in table.keys}
    roles = {worker.role for worker in table.workers}
    if roles in ({Role.PREFILL}, {Role.DECODE}):
        missing = "decode" if Role.PREFILL in roles else "prefill"
        for worker in table.workers:
            if not worker.can_colocate:
                down = f"{Reason.WORKER_DOWN.value}: {worker.id} is down"
                alone = f"{Reason.NO_PARTNER.value}: no {missing} worker to pair with"
                reasons[worker.id] = alone if worker.healthy else down
    counts: dict[str, int] = {}
    for text in reasons.values():
        counts[text] = counts.get(text, 0) + 1
    told = "; ".join(f"{text} ({count})" for text, count in sorted(counts.items()))
    return NoPlanError(f"no plan can run this request: {told}", reasons)
