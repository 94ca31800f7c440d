"""Another plan than the chosen one now and then, where that costs next to nothing: what is never tried is
never learned, and a link that has recovered would stay unused."""

from dataclasses import dataclass

import numpy as np

from kvferry.policy import draw
from kvferry.policy.candidates import Floats, Ints
from kvferry.policy.evaluation import Evaluation

# A policy draws its own numbers with salts 0 and 1.
SALT = 7
MAX_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Drawn:
    """The plan that is taken (its row), and how likely its mode and the plan itself were."""

    row: int
    propensity_mode: float
    propensity_plan: float
    explored: bool

    @property
    def propensities(self) -> dict[str, float]:
        """As a Decision has them."""
        return {"propensity_mode": self.propensity_mode, "propensity_plan": self.propensity_plan}


@dataclass(frozen=True, slots=True)
class Exploration:
    """With probability `share` the request takes a plan that was not chosen: half of that the best plan of
    the other mode, half any other plan of the same mode, all equally likely; all of it goes to one half
    where the other has no plan.

    Only among plans whose score is less than `budget` (expected lost requests) above the lowest, the chosen
    one included; never a plan without room, never a request that was given up before (`Cluster.excluded`)
    or whose priority is above `max_priority`.
    """

    share: float
    budget: float
    max_priority: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= MAX_SHARE:
            raise ValueError(f"explore {self.share:g} is not between 0 and {MAX_SHARE}")
        if self.budget < 0.0:
            raise ValueError(f"explore_budget {self.budget:g} is negative")

    def may(self, seed: int) -> bool:
        """Whether this request is one of those that explore, if there is a plan to explore."""
        return draw.unit(seed, SALT) < self.share

    def draw(self, evaluation: Evaluation, row: int) -> Drawn:
        """What becomes of a request for which `row` was chosen; the same seed draws the same."""
        rival, alike, chances = self._others(evaluation, row)
        to_rival, to_alike = chances
        number = draw.unit(evaluation.request.seed, SALT)
        if number < to_rival:
            return Drawn(rival, to_rival, to_rival, explored=True)
        stays = 1.0 - to_rival
        if number < to_rival + to_alike:
            place = min(int((number - to_rival) / to_alike * len(alike)), len(alike) - 1)
            return Drawn(int(alike[place]), stays, to_alike / len(alike), explored=True)
        return Drawn(row, stays, stays - to_alike, explored=False)

    def chances(self, evaluation: Evaluation, row: int) -> Floats:
        """[P] the probability of every plan when `row` was chosen; they add up to 1."""
        rival, alike, (to_rival, to_alike) = self._others(evaluation, row)
        found = np.zeros(len(evaluation.usable))
        if to_rival:
            found[rival] = to_rival
        if to_alike:
            found[alike] = to_alike / len(alike)
        found[row] = 1.0 - to_rival - to_alike
        return found

    def _others(self, evaluation: Evaluation, row: int) -> tuple[int, Ints, tuple[float, float]]:
        """Best row of the other mode, other rows of the same, and the probability of either."""
        nothing = -1, np.zeros(0, dtype=np.intp), (0.0, 0.0)
        if evaluation.request.priority > self.max_priority or evaluation.cluster.excluded:
            return nothing
        ranked, count = evaluation.ranked, evaluation.cluster.candidates.colocated_count
        limit = ranked[ranked.argmin()] + self.budget
        if not ranked[row] < limit:
            return nothing
        near = ranked < limit
        near &= evaluation.prediction.fits  # where none does, all are usable
        near[row] = False
        split = row >= count
        rival = evaluation.best_colocated if split else evaluation.best_split
        alike = near[count:].nonzero()[0] + count if split else near[:count].nonzero()[0]
        has_rival, has_alike = rival >= 0 and bool(near[rival]), bool(len(alike))
        half = 0.5 * self.share if has_rival and has_alike else self.share
        return rival, alike, (half * has_rival, half * has_alike)
