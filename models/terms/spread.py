"""How far above its median a prediction's 90th percentile must be for 90% of outcomes to be under it."""

import math
from dataclasses import dataclass, field

SHARE = 0.9
STEP = 0.08
LEAST, MOST = -2.0, 2.0


@dataclass(slots=True)
class Spread:
    """`wide` is added to the logarithm of a predicted 90th percentile (adaptive conformal inference,
    Gibbs and Candes, 2021):

        wide <- wide + STEP * SHARE          when an outcome was above that percentile,
        wide <- wide - STEP * (1 - SHARE)    when it was not;  within [LEAST, MOST]

    whatever outcomes are like, over n of them the share under it is 90% up to (MOST - LEAST) / (STEP * n).
    """

    wide: float = 0.0
    count: int = 0
    inside: float = SHARE

    def observe(self, actual: float | None, p90: float | None) -> None:
        """`p90`: as it was predicted, `wide` of then included. What is missing or not finite says nothing."""
        if actual is None or p90 is None or not (0.0 <= actual < math.inf and 0.0 < p90 < math.inf):
            return
        over = actual > p90
        self.wide = min(max(self.wide + STEP * (SHARE - (not over)), LEAST), MOST)
        self.inside += 0.02 * ((not over) - self.inside)
        self.count += 1


def _pair() -> tuple[Spread, Spread]:
    return Spread(), Spread()


@dataclass(frozen=True, slots=True)
class Spreads:
    """Of one model's requests: TTFT and ITL of colocated and of split ones, and moves as a learned version
    corrected them."""

    ttft: tuple[Spread, Spread] = field(default_factory=_pair)
    itl: tuple[Spread, Spread] = field(default_factory=_pair)
    transfer: Spread = field(default_factory=Spread)

    @property
    def ttft_wide(self) -> tuple[float, float]:
        """As `State` has them."""
        return self.ttft[0].wide, self.ttft[1].wide

    @property
    def itl_wide(self) -> tuple[float, float]:
        return self.itl[0].wide, self.itl[1].wide
