"""What rules have in common that choose the mode and leave the workers to the load."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from kvferry.policy import draw
from kvferry.policy.candidates import Bools, Floats
from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import Decision, Reason
from kvferry.policy.evaluation import Evaluation
from kvferry.policy.predict import ADMISSION, PREFILL, QUEUE
from kvferry.policy.request import Request


def load_s(evaluation: Evaluation) -> Floats:
    """[P] seconds of work in front of each plan: prefill queue, KV room, and the decode batch's step."""
    prediction = evaluation.prediction
    load: Floats = prediction.terms[QUEUE] + prediction.terms[ADMISSION]
    load += prediction.standing.itls_s[0].take(evaluation.cluster.candidates.dec)
    return load


def wait_s(evaluation: Evaluation) -> Floats:
    """[P] `load_s` and the request's own prefill, so that a held prefix counts: what rules place by."""
    wait: Floats = load_s(evaluation) + evaluation.prediction.terms[PREFILL]
    return wait


def least(seconds: Floats, among: Bools) -> int:
    """Row with the least of `seconds` in `among`, the first key on ties; -1 when it is empty."""
    return int(np.where(among, seconds, np.inf).argmin()) if among.any() else -1


def least_of(evaluation: Evaluation, *, split: bool) -> int:
    """Row with the least `wait_s` among the usable plans of a mode; -1 when there is none."""
    wait = wait_s(evaluation)
    if not evaluation.all_usable:
        return least(wait, evaluation.split if split else evaluation.colocated)
    count = evaluation.cluster.candidates.colocated_count
    mode = wait[count:] if split else wait[:count]
    if not len(mode):
        return -1
    return int(mode.argmin()) + (count if split else 0)


def uncached_tokens(evaluation: Evaluation) -> float:
    """Prompt tokens left to compute on the worker that would run it locally."""
    return float(evaluation.prediction.new_tokens[least_of(evaluation, split=False)])


@dataclass(frozen=True)
class ModeRule(ABC):
    """A rule that chooses the mode; subclasses say how likely a split is (0 or 1 for fixed rules)."""

    @property
    @abstractmethod
    def name(self) -> str:
        """As in `Policy`."""

    @abstractmethod
    def split_share(self, evaluation: Evaluation) -> float:
        """Probability of a split. Asked only where both modes have a usable plan."""

    def decide(self, request: Request, cluster: Cluster) -> Decision:
        evaluation = Evaluation.of(request, cluster)
        if not evaluation.has_both:
            row, chance = self.place(evaluation, split=None)
            return evaluation.decide(row, self.name, propensity_plan=chance)
        share = self.split_share(evaluation)
        split = draw.unit(request.seed) < share
        row, chance = self.place(evaluation, split=split)
        mode_chance = share if split else 1.0 - share
        return evaluation.decide(
            row,
            self.name,
            Reason.RULE,
            propensity_mode=mode_chance,
            propensity_plan=mode_chance * chance,
        )

    def place(self, evaluation: Evaluation, *, split: bool | None) -> tuple[int, float]:
        """Row within the mode (None: the only one there is) and the probability with which it was taken."""
        if split is None:
            return least(wait_s(evaluation), evaluation.usable), 1.0
        return least_of(evaluation, split=split), 1.0
