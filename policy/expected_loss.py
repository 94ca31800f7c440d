"""kvferry's own policy: the lowest expected SLO loss, harm to others included."""

from dataclasses import dataclass

from kvferry.policy.base import register
from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import Decision, Reason
from kvferry.policy.evaluation import Evaluation
from kvferry.policy.request import Request

STALE_AFTER_S = 5.0


@register("kvferry")
@dataclass(frozen=True)
class ExpectedLoss:
    """Choose the plan with the lowest score, when the gain over the other mode is clear.

    When it is not, or when the loads are older than `stale_after_s`, the safe rule decides the mode: a
    length threshold on uncached tokens, the best single fixed rule of the scoring study.
    """

    safe_threshold_tokens: float = 2048.0
    stale_after_s: float = STALE_AFTER_S

    @property
    def name(self) -> str:
        return "kvferry"

    def decide(self, request: Request, cluster: Cluster) -> Decision:
        evaluation = Evaluation.of(request, cluster)
        age_s = cluster.time_s - float(cluster.state.load_time_s.min())
        if age_s > self.stale_after_s:
            return self._safe(evaluation, Reason.STALE_LOAD)
        row = evaluation.clear_winner
        if row < 0:
            return self._safe(evaluation, Reason.UNCERTAIN_GAIN)
        return evaluation.decide(row, self.name)

    def _safe(self, evaluation: Evaluation, reason: Reason) -> Decision:
        split, colocated = evaluation.best(evaluation.split), evaluation.best(evaluation.colocated)
        if split < 0 or colocated < 0:
            return evaluation.decide(max(split, colocated), self.name, Reason.ONLY_OPTION)
        long = evaluation.prediction.new_tokens[colocated] >= self.safe_threshold_tokens
        return evaluation.decide(
            split if long else colocated,
            self.name,
            reason,
            safe_rule=f"length_threshold({self.safe_threshold_tokens:g})",
        )
