"""What a learned model says about structured predictions: by how much they are off, at several quantiles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvferry.policy.candidates import Bools, Floats

QUANTILES = (0.5, 0.9, 0.99)
# The quantities that are corrected. A choice needs the medians of `ttft` and `itl` of every plan; all else
# is only worked out for plans that are told of.
TERMS = ("queue", "prefill", "transfer", "repack", "admission")
TARGETS = ("ttft", "itl", *TERMS)


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """Corrections of every plan as natural logarithms: a quantile of the actual value is the structured
    median times exp of it, in ln(seconds + `features.EPSILON_S`) terms.

    `ttft` and `itl` are [P], of the median. `inside` is [P]: whether a plan's features lie where the model
    was trained; where they do not, its column is not to be used and `why_not` (row -> one short text) says
    which feature is out. `quantiles`: rows -> [7, 3, n] for TARGETS at QUANTILES, never falling along them;
    NaN where the model knows nothing of a target, which `ttft` and `itl` never are.
    """

    ttft: Floats
    itl: Floats
    inside: Bools
    all_inside: bool
    quantiles: Callable[[Sequence[int]], Floats]
    why_not: Callable[[int], str]


class Corrector(Protocol):
    """A learned model, ready to decide with. Pure: the same features give the same correction."""

    @property
    def version(self) -> str:
        """The version's name, as it stands in decision records."""
        ...

    def correct(self, features: Floats) -> Correction:
        """Of [F, P] features (`kvferry.policy.features`), all plans in one call."""
        ...
