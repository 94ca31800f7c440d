"""The rules in use elsewhere, under their public names, behind the same interface.

Each decides the mode by its own published rule; within the mode every one of them places by the least
prefill and decode load, own in-flight work included, so that comparisons judge the rule and not its
placement (`random_by_workers` alone draws its workers, as it does in the field). A mode without a usable
plan yields to the other, with `only_option` or what blocked it. Rules that need history (`ppd_table`,
`pinned_conversation`) and `oracle` are not here.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from kvferry.policy import draw
from kvferry.policy.base import register
from kvferry.policy.candidates import Bools, Floats
from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import Decision, Reason
from kvferry.policy.evaluation import Evaluation
from kvferry.policy.predict import ADMISSION, QUEUE
from kvferry.policy.request import Request
from kvferry.policy.score import MIN_SLO_S


def load_s(evaluation: Evaluation) -> Floats:
    """[P] seconds of work in front of each plan: prefill queue, KV room, and the decode batch's step."""
    prediction = evaluation.prediction
    itl_s = prediction.standing.itls_s[0][evaluation.cluster.candidates.dec]
    load: Floats = prediction.terms[QUEUE] + prediction.terms[ADMISSION] + itl_s
    return load


def least(evaluation: Evaluation, among: Bools) -> int:
    """Row with the least load in `among`, the first key on ties; -1 when it is empty."""
    return int(np.where(among, load_s(evaluation), np.inf).argmin()) if among.any() else -1


@dataclass(frozen=True)
class ModeRule(ABC):
    """A rule that chooses the mode; subclasses say how likely a split is (0 or 1 for fixed rules)."""

    @property
    @abstractmethod
    def name(self) -> str:
        """As in `Policy`."""

    @abstractmethod
    def split_share(self, evaluation: Evaluation) -> float:
        """Probability of a split."""

    def decide(self, request: Request, cluster: Cluster) -> Decision:
        evaluation = Evaluation.of(request, cluster)
        if not (evaluation.split.any() and evaluation.colocated.any()):
            row, chance = self.place(evaluation, evaluation.usable)
            return evaluation.decide(row, self.name, propensity_plan=chance)
        share = self.split_share(evaluation)
        split = draw.unit(request.seed) < share
        row, chance = self.place(evaluation, evaluation.split if split else evaluation.colocated)
        mode_chance = share if split else 1.0 - share
        return evaluation.decide(
            row,
            self.name,
            Reason.RULE,
            propensity_mode=mode_chance,
            propensity_plan=mode_chance * chance,
        )

    def place(self, evaluation: Evaluation, among: Bools) -> tuple[int, float]:
        """Row within the mode and the probability with which it was taken."""
        return least(evaluation, among), 1.0


@register("always_split")
@dataclass(frozen=True)
class AlwaysSplit(ModeRule):
    """Every request crosses (plain prefill/decode deployments)."""

    @property
    def name(self) -> str:
        return "always_split"

    def split_share(self, evaluation: Evaluation) -> float:
        return 1.0


@register("always_colocated")
@dataclass(frozen=True)
class AlwaysColocated(ModeRule):
    """No request crosses."""

    @property
    def name(self) -> str:
        return "always_colocated"

    def split_share(self, evaluation: Evaluation) -> float:
        return 0.0


@register("random_by_workers")
@dataclass(frozen=True)
class RandomByWorkers(ModeRule):
    """sglang-router and smg in a mixed pool: the kind of worker is drawn, weighted by worker count, then
    the workers are drawn."""

    @property
    def name(self) -> str:
        return "random_by_workers"

    def split_share(self, evaluation: Evaluation) -> float:
        table = evaluation.cluster.candidates
        pairs = len(set(table.pre[evaluation.split]) | set(table.dec[evaluation.split]))
        single = len(set(table.pre[evaluation.colocated]))
        return pairs / max(1, pairs + single)

    def place(self, evaluation: Evaluation, among: Bools) -> tuple[int, float]:
        rows = np.flatnonzero(among)
        return int(rows[draw.pick(evaluation.request.seed, len(rows), salt=1)]), 1.0 / len(rows)


@register("coin")
@dataclass(frozen=True)
class Coin(ModeRule):
    """Split with a fixed probability, whatever the request."""

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"share {self.share} is not between 0 and 1")

    @property
    def name(self) -> str:
        return f"coin({self.share:g})"

    def split_share(self, evaluation: Evaluation) -> float:
        return self.share


@register("length_threshold")
@dataclass(frozen=True)
class LengthThreshold(ModeRule):
    """Split when the prompt has at least `tokens` tokens."""

    tokens: float = 2048.0

    @property
    def name(self) -> str:
        return f"length_threshold({self.tokens:g})"

    def split_share(self, evaluation: Evaluation) -> float:
        return float(evaluation.request.prompt_tokens >= self.tokens)


def uncached_tokens(evaluation: Evaluation) -> float:
    """Prompt tokens left to compute on the worker that would run it locally."""
    row = least(evaluation, evaluation.colocated)
    return float(evaluation.prediction.new_tokens[row])


@register("llmd_prefix_threshold")
@dataclass(frozen=True)
class LlmdPrefixThreshold(ModeRule):
    """llm-d's prefix-based decider: split when uncached tokens reach `non_cached_tokens`."""

    non_cached_tokens: float = 512.0

    @property
    def name(self) -> str:
        return f"llmd_prefix_threshold({self.non_cached_tokens:g})"

    def split_share(self, evaluation: Evaluation) -> float:
        return float(uncached_tokens(evaluation) >= self.non_cached_tokens)


@register("dynamo_isl_bounding")
@dataclass(frozen=True)
class DynamoIslBounding(ModeRule):
    """NVIDIA Dynamo 1.6: bypass remote prefill when effective ISL < `max_isl` and effective/raw < `ratio`."""

    max_isl: float = 2048.0
    ratio: float = 0.7

    @property
    def name(self) -> str:
        return "dynamo_isl_bounding"

    def split_share(self, evaluation: Evaluation) -> float:
        return float(not self.bypass(evaluation))

    def bypass(self, evaluation: Evaluation) -> bool:
        effective = uncached_tokens(evaluation)
        return effective < self.max_isl and effective < self.ratio * evaluation.request.prompt_tokens


@register("dynamo_isl_or_load")
@dataclass(frozen=True)
class DynamoIslOrLoad(DynamoIslBounding):
    """As `dynamo_isl_bounding`, or bypass when prefill is loaded; a busy local worker vetoes the bypass."""

    busy_tokens: float = 8192.0
    busy_usage: float = 0.9

    @property
    def name(self) -> str:
        return "dynamo_isl_or_load"

    def bypass(self, evaluation: Evaluation) -> bool:
        state, table = evaluation.cluster.state, evaluation.cluster.candidates
        local = table.dec[least(evaluation, evaluation.colocated)]
        remote = table.pre[least(evaluation, evaluation.split)]
        held = state.foreign_context_tokens[local] + state.own_context_tokens[local]
        if held > self.busy_usage * state.max_total_tokens[local]:
            return False
        queued = state.foreign_prefill_tokens[remote] + state.own_prefill_tokens[remote]
        return bool(queued > self.busy_tokens) or super().bypass(evaluation)


@register("aibrix_combined")
@dataclass(frozen=True)
class AibrixCombined(ModeRule):
    """AIBrix: a combined worker serves when it is idle (< `idle`) while prefill or decode is hot (> `hot`).

    Load of a worker: its prefill queue in seconds over the TTFT objective, or its KV use, the larger.
    """

    idle: float = 0.25
    hot: float = 1.0

    @property
    def name(self) -> str:
        return "aibrix_combined"

    def split_share(self, evaluation: Evaluation) -> float:
        state, table = evaluation.cluster.state, evaluation.cluster.candidates
        queue_s = (state.foreign_prefill_tokens + state.own_prefill_tokens) * state.prefill_s_per_token
        room = np.maximum(state.max_total_tokens, 1.0)
        held = (state.foreign_context_tokens + state.own_context_tokens) / room
        load = np.maximum(queue_s / max(evaluation.request.slo.ttft_s, MIN_SLO_S), held)
        combined = load[table.dec[least(evaluation, evaluation.colocated)]]
        pair = least(evaluation, evaluation.split)
        return float(
            not (combined < self.idle and max(load[table.pre[pair]], load[table.dec[pair]]) > self.hot)
        )


@register("least_load")
@dataclass(frozen=True)
class LeastLoad(ModeRule):
    """The plan with the least work in front of it, whatever its mode."""

    @property
    def name(self) -> str:
        return "least_load"

    def split_share(self, evaluation: Evaluation) -> float:
        return float(evaluation.cluster.candidates.split[least(evaluation, evaluation.usable)])
