"""Rules in use elsewhere that follow conversations: a worker that holds a prompt's beginning has seen it.

A policy keeps no state of its own, so `Request.held_tokens` is the observation: a request of whose prompt
some worker holds at least LATER_SHARE is a later turn, and that worker is where its conversation is. Less
than that is a system prompt that many conversations share.
"""

from dataclasses import dataclass

import numpy as np

from kvferry.policy.base import register
from kvferry.policy.candidates import Bools, Floats
from kvferry.policy.evaluation import Evaluation
from kvferry.policy.mode_rule import ModeRule, least, least_of, wait_s

LATER_SHARE = 0.25

# vllm-ppd's benchmark table is not public, its axes are. This one is ours: 1 where a later turn is split, by
# requests per second and decoding worker (rows: under 0.5, under 2, more), prompt over expected output of
# this turn (columns: under 1, under 4, more), and tokens of context (under 4096, under 16384, more). A split
# pays where there are decodes to spare (many requests), where this turn is mostly prefill (high ratio), and
# where little has to be moved for it (short context).
QPS = (0.5, 2.0)
RATIO = (1.0, 4.0)
CONTEXT = (4096.0, 16384.0)
TABLE = (
    ((0, 0, 0), (0, 0, 0), (0, 0, 0)),
    ((0, 0, 0), (1, 0, 0), (1, 1, 0)),
    ((0, 0, 0), (1, 1, 0), (1, 1, 1)),
)


def held_tokens(evaluation: Evaluation) -> Floats:
    """[W] tokens of the prompt that need no prefill on each worker."""
    held: Floats = evaluation.request.prompt_tokens - evaluation.prediction.standing.new_tokens
    return held


def is_later_turn(evaluation: Evaluation) -> bool:
    """Whether some worker holds enough of the prompt to have seen its conversation."""
    return bool(held_tokens(evaluation).max() >= LATER_SHARE * evaluation.request.prompt_tokens)


def holding(evaluation: Evaluation, among: Bools) -> int:
    """Of `among` the plan where the conversation is: a plan whose decoding worker holds the most, on it alone
    where it can prefill, then by least wait; else one whose prefilling worker does. -1: nobody holds it."""
    table, held = evaluation.cluster.candidates, held_tokens(evaluation)
    for at in (table.dec, table.pre):
        here = np.where(among, held.take(at), -1.0)
        most = here.max(initial=-1.0)
        if most >= max(1.0, LATER_SHARE * evaluation.request.prompt_tokens):
            rows = here == most
            alone = rows & ~table.split
            return least(wait_s(evaluation), alone if alone.any() else rows)
    return -1


@register("pinned_conversation")
@dataclass(frozen=True)
class PinnedConversation(ModeRule):
    """ConServe: a conversation stays on the worker where it is. Its first turn goes where the wait is least,
    whatever the mode (that part is ours)."""

    @property
    def name(self) -> str:
        return "pinned_conversation"

    def split_share(self, evaluation: Evaluation) -> float:
        row, _ = self.place(evaluation, split=None)
        return float(evaluation.cluster.candidates.split[row])

    def place(self, evaluation: Evaluation, *, split: bool | None) -> tuple[int, float]:
        row = holding(evaluation, evaluation.usable)
        return (row if row >= 0 else least(wait_s(evaluation), evaluation.usable)), 1.0


@register("ppd_table")
@dataclass(frozen=True)
class PPDTable(ModeRule):
    """vllm-ppd: first turns are split; later ones with fewer than `short_tokens` new tokens stay on the
    worker that holds them; of the others a table decides by context, input/output ratio and request rate."""

    short_tokens: float = 512.0

    @property
    def name(self) -> str:
        return "ppd_table"

    def split_share(self, evaluation: Evaluation) -> float:
        if not is_later_turn(evaluation):
            return 1.0
        request, (row, _) = evaluation.request, self.place(evaluation, split=False)
        new = float(evaluation.prediction.new_tokens[row])
        if new < self.short_tokens:
            return 0.0
        table, state = evaluation.cluster.candidates, evaluation.cluster.state
        decoding = table.decodes > 0.0
        rate = float(state.arrivals_per_s.sum()) / max(1, int(decoding.sum()))
        ratio = new / max(1.0, request.expected_output_tokens * max(1, request.sequences))
        by_rate = TABLE[_bucket(rate, QPS)]
        return float(by_rate[_bucket(ratio, RATIO)][_bucket(request.prompt_tokens, CONTEXT)])

    def place(self, evaluation: Evaluation, *, split: bool | None) -> tuple[int, float]:
        if split is not False:
            return super().place(evaluation, split=split)
        row = holding(evaluation, evaluation.colocated)
        return (row if row >= 0 else least_of(evaluation, split=False)), 1.0


def _bucket(value: float, bounds: tuple[float, ...]) -> int:
    return sum(value >= bound for bound in bounds)
