"""All plans of one request, predicted and scored, and how a choice among them becomes a Decision."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import overload

import numpy as np

from kvferry.policy.candidates import Bools, Floats
from kvferry.policy.cluster import Cluster
from kvferry.policy.corrected import predicted, told
from kvferry.policy.costs import Costs, Estimate
from kvferry.policy.decision import STRUCTURED, Decision, NoPlanError, Reason
from kvferry.policy.deferring import Deferring
from kvferry.policy.plan import Plan
from kvferry.policy.predict import Prediction, costs_of
from kvferry.policy.reasons import REASONS, against, no_rival, reason_codes
from kvferry.policy.request import Request
from kvferry.policy.score import Scores, score
from kvferry.policy.worker import Role

# The first token may take four times its pessimistic prediction, and at least 10 s.
DEADLINE_FLOOR_S = 10.0
DEADLINE_FACTOR = 4.0
ALTERNATIVES = 3
# These hold the places of what is worked out later.
_NO_TERM = Estimate(0.0, 0.0)
_NO_COSTS = Costs(
    _NO_TERM,
    _NO_TERM,
    _NO_TERM,
    _NO_TERM,
    _NO_TERM,
    _NO_TERM,
    _NO_TERM,
    _NO_TERM,
    score=0.0,
    cautious_score=0.0,
)
_NO_ROWS = np.zeros((2, 0))
_NO_SCORES = Scores(_NO_ROWS, _NO_ROWS[0], _NO_ROWS[1], _NO_ROWS[0], _NO_ROWS, _NO_ROWS)


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation(Deferring):
    """`usable` rows are feasible and, where any plan fits, fit; `ranked` is their score, else infinity.

    `scores`, and `ranked` with them, are worked out when they are first read.
    """

    request: Request
    cluster: Cluster
    prediction: Prediction
    usable: Bools
    all_usable: bool
    scores: Scores
    ranked: Floats

    @classmethod
    def of(cls, request: Request, cluster: Cluster) -> "Evaluation":
        """Predict every plan; raises NoPlanError, with a reason each, when none is usable."""
        table = cluster.candidates
        if not table.plans:
            raise _no_plan(cluster)
        prediction = predicted(request, cluster)
        if prediction.feasible is table.every and prediction.fits is table.every:
            return cls._with(request, cluster, prediction, table.every, None)
        usable = prediction.feasible & prediction.fits
        if not usable.any():
            # Too large by our count for every worker: the worker's own refusal is the exact one.
            usable = prediction.feasible
            if not usable.any():
                raise _no_plan(cluster)
        return cls._with(request, cluster, prediction, usable, None)

    @classmethod
    def _with(
        cls,
        request: Request,
        cluster: Cluster,
        prediction: Prediction,
        usable: Bools,
        scored: Callable[[], Scores] | None,
    ) -> "Evaluation":
        every = usable is cluster.candidates.every or bool(usable.all())
        nothing = prediction.new_tokens
        made = cls(request, cluster, prediction, usable, every, _NO_SCORES, nothing)

        def scores() -> dict[str, object]:
            found = scored() if scored else score(prediction, cluster.candidates, request.slo)
            return {
                "scores": found,
                "ranked": found.total if every else np.where(usable, found.total, np.inf),
            }

        made.defer(scores, "scores", "ranked")
        return made

    def only(self, rows: Bools) -> "Evaluation":
        """This evaluation with no other than the usable plans in `rows`."""
        usable = self.usable & rows
        return self._with(self.request, self.cluster, self.prediction, usable, lambda: self.scores)

    @property
    def split(self) -> Bools:
        return self.usable & self.cluster.candidates.split

    @property
    def colocated(self) -> Bools:
        return self.usable & ~self.cluster.candidates.split

    @property
    def has_both(self) -> bool:
        """Whether both modes have a usable plan."""
        count = self.cluster.candidates.colocated_count
        if self.all_usable:
            return 0 < count < len(self.usable)
        return bool(self.usable[:count].any() and self.usable[count:].any())

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
        """The Decision for plan `row`; without a `reason`, the term that decided it is named.

        What only a log or an explanation asks for (costs, alternatives, reasons against) is worked out then.
        """
        table = self.cluster.candidates
        codes = None
        explored = reason is Reason.EXPLORED
        if not self.has_both and not explored:
            reason = no_rival(self, row)
        elif reason is None:
            codes = reason_codes(self, row)
            reason = REASONS[codes[self._rival(row)]]
        load_time_s = self.cluster.state.load_time_s
        age_s = self.cluster.time_s - min(load_time_s[table.pre[row]], load_time_s[table.dec[row]])
        decision = Decision(
            plan=table.plans[row],
            reason=reason,
            costs=_NO_COSTS,
            policy=policy,
            propensity_mode=propensity_mode,
            propensity_plan=propensity_plan,
            model_version=self._model_version(row),
            safe_rule=safe_rule,
            view_age_s=max(0.0, float(age_s)),
            explored=explored,
        )
        given = reason

        def costs() -> dict[str, object]:
            found = self._costs_of(row)
            deadline_s = max(DEADLINE_FLOOR_S, DEADLINE_FACTOR * found.ttft_s.p90)
            return {"costs": found, "deadline_s": deadline_s}

        def others() -> dict[str, object]:
            return {"alternatives": Alternatives(self, self._others(row, self._rival(row)))}

        def refused() -> dict[str, object]:
            found = reason_codes(self, row) if codes is None else codes
            return {"reasons_against": against(self, row, found, given)}

        decision.defer(costs, "costs", "deadline_s")
        decision.defer(others, "alternatives")
        decision.defer(refused, "reasons_against")
        return decision

    def costs_of(self, rows: Sequence[int], scores: Floats) -> list[Costs]:
        """The predicted terms of some plans, corrected where a model does; `scores` is [2, P]."""
        costs = costs_of(self.prediction, self.cluster, rows, scores)
        return told(costs, rows, self.request, self.cluster, self.prediction)

    def _costs_of(self, row: int) -> Costs:
        (costs,) = self.costs_of([row], _unscored(len(self.usable)))

        def scores() -> dict[str, object]:
            median, cautious = self.scores.both[:, row].tolist()
            return {"score": median, "cautious_score": cautious}

        costs.defer(scores, "score", "cautious_score")
        return costs

    def _model_version(self, row: int) -> str:
        correction, corrector = self.prediction.correction, self.cluster.corrector
        if correction is None or corrector is None or not correction.inside[row]:
            return STRUCTURED
        return corrector.version

    def _rival(self, row: int) -> int:
        """Row of the best plan of the other mode; -1: there is none."""
        return self.best_colocated if row >= self.cluster.candidates.colocated_count else self.best_split

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
            costs = whole.costs_of(self._rows, whole.scores.both)
            plans = [whole.cluster.candidates.plans[row] for row in self._rows]
            self._found = tuple(zip(plans, costs, strict=True))
        return self._found[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


@cache
def _unscored(plans: int) -> Floats:
    return np.zeros((2, plans))


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
