"""The rules in use elsewhere, under their public names, behind the same interface.

Each decides the mode by its own published rule; within the mode every one of them places by the least
prefill and decode load, own in-flight work and held prefixes included, so that comparisons judge the rule
and not its placement (`random_by_workers` alone draws its workers, as it does in the field). A mode without
a usable plan yields to the other, with `only_option` or what blocked it. Rules that follow conversations are
in `conversations`; `oracle` is the simulator's.
"""

from dataclasses import dataclass

import numpy as np

from kvferry.policy import draw
from kvferry.policy.base import register
from kvferry.policy.evaluation import Evaluation
from kvferry.policy.mode_rule import ModeRule, least, least_of, load_s, uncached_tokens
from kvferry.policy.score import MIN_SLO_S


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

    def place(self, evaluation: Evaluation, *, split: bool | None) -> tuple[int, float]:
        modes = {None: evaluation.usable, True: evaluation.split, False: evaluation.colocated}
        rows = np.flatnonzero(modes[split])
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

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError(f"a threshold of {self.tokens:g} tokens is no length")

    @property
    def name(self) -> str:
        return f"length_threshold({self.tokens:g})"

    def split_share(self, evaluation: Evaluation) -> float:
        return float(evaluation.request.prompt_tokens >= self.tokens)


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
        local = table.dec[least_of(evaluation, split=False)]
        remote = table.pre[least_of(evaluation, split=True)]
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
        combined = load[table.dec[least_of(evaluation, split=False)]]
        pair = least_of(evaluation, split=True)
        return float(
            not (combined < self.idle and max(load[table.pre[pair]], load[table.dec[pair]]) > self.hot)
        )


@register("least_load")
@dataclass(frozen=True)
class LeastLoad(ModeRule):
    """The plan with the least work in front of it, whatever its mode; its own prefill does not count."""

    @property
    def name(self) -> str:
        return "least_load"

    def split_share(self, evaluation: Evaluation) -> float:
        return float(evaluation.cluster.candidates.split[self._row(evaluation)])

    def place(self, evaluation: Evaluation, *, split: bool | None) -> tuple[int, float]:
        return self._row(evaluation), 1.0

    @staticmethod
    def _row(evaluation: Evaluation) -> int:
        return least(load_s(evaluation), evaluation.usable)
