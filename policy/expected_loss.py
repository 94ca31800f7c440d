"""kvferry's own policy: the lowest expected SLO loss, harm to others included."""

from dataclasses import dataclass

from kvferry.policy.base import register
from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import Decision, Reason
from kvferry.policy.evaluation import Evaluation
from kvferry.policy.exploration import Exploration
from kvferry.policy.request import Request

STALE_AFTER_S = 5.0
MIN_GAIN = 1e-3
EXPLORE_BUDGET = 0.02


@register("kvferry")
@dataclass(frozen=True)
class ExpectedLoss:
    """Choose the plan with the lowest score, when the gain over the other mode is clear.

    Plans on workers whose load is older than `stale_after_s` are passed over for others of their mode.
    When a mode has only such plans, or the gain is not clear, the safe rule decides the mode: a length
    threshold on uncached tokens, the best single fixed rule of the scoring study. A split's gain is not
    clear either while it is under `min_gain` expected lost requests: a move can fail, and takes bandwidth
    that nothing here prices.

    With probability `explore` another plan is taken, to learn from it, if that is expected to lose less than
    `explore_budget` requests more: see `exploration`. Not on loads too old to trust, and not with requests
    of a priority above `explore_max_priority`.
    """

    safe_threshold_tokens: float = 2048.0
    stale_after_s: float = STALE_AFTER_S
    min_gain: float = MIN_GAIN
    explore: float = 0.0
    explore_budget: float = EXPLORE_BUDGET
    explore_max_priority: float = 0.0

    def __post_init__(self) -> None:
        self.exploration  # noqa: B018 - raises ValueError for figures that make no sense

    @property
    def name(self) -> str:
        return "kvferry"

    @property
    def exploration(self) -> Exploration:
        return Exploration(self.explore, self.explore_budget, self.explore_max_priority)

    def decide(self, request: Request, cluster: Cluster) -> Decision:
        evaluation, stale = self._fresh(Evaluation.of(request, cluster))
        row, reason, safe_rule = self._choose(evaluation, stale)
        if stale or not self.explore:
            return evaluation.decide(row, self.name, reason, safe_rule=safe_rule)
        exploration = self.exploration
        if not exploration.may(request.seed):
            decision = evaluation.decide(row, self.name, reason, safe_rule=safe_rule)
            decision.defer(
                lambda: exploration.draw(evaluation, row).propensities, "propensity_mode", "propensity_plan"
            )
            return decision
        drawn = exploration.draw(evaluation, row)
        return evaluation.decide(
            drawn.row,
            self.name,
            Reason.EXPLORED if drawn.explored else reason,
            safe_rule="" if drawn.explored else safe_rule,
            **drawn.propensities,
        )

    def _choose(self, evaluation: Evaluation, stale: bool) -> tuple[int, Reason | None, str]:
        """The plan to take, why (None: for the term in which it is better), and the safe rule that chose."""
        split, colocated = evaluation.best_split, evaluation.best_colocated
        if split < 0 or colocated < 0:
            return max(split, colocated), None, ""
        row = -1 if stale else evaluation.clear_winner(split, colocated, self.min_gain)
        if row >= 0:
            return row, None, ""
        long = evaluation.prediction.new_tokens[colocated] >= self.safe_threshold_tokens
        reason: Reason | None = Reason.STALE_LOAD if stale else Reason.UNCERTAIN_GAIN
        if not stale and evaluation.clear_winner(split, colocated) == split:
            # certain, if small: worth it for a long prompt, for the very term that gains
            reason = None if long else Reason.SMALL_PROMPT
        safe_rule = f"length_threshold({self.safe_threshold_tokens:g})"
        return split if long else colocated, reason, safe_rule

    def _fresh(self, evaluation: Evaluation) -> tuple[Evaluation, bool]:
        """Without the stale plans of modes that have fresh ones, and whether a mode has none.

        Ages do not depend on links, so that no slower link brings a split back.
        """
        table = evaluation.cluster.candidates
        read_s, limit_s = evaluation.cluster.state.load_time_s, evaluation.cluster.time_s - self.stale_after_s
        if read_s[read_s.argmin()] >= limit_s:
            return evaluation, False
        old = read_s < limit_s
        fresh = ~(old[table.pre] | old[table.dec])
        keep = fresh.copy()
        stale = False
        for mode in (evaluation.split, evaluation.colocated):
            if mode.any() and not (mode & fresh).any():
                keep |= mode
                stale = True
        return evaluation.only(keep), stale
