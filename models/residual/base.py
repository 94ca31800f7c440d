"""What every kind of model can do for a decision."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvferry.policy.candidates import Floats

F32 = NDArray[np.float32]
# A choice needs their medians for every plan.
FAST = ("ttft", "itl")


class Model(Protocol):
    """Corrections as natural logarithms, before calibration. With k targets, of which m are FAST ones."""

    def medians(self, features: Floats) -> F32:
        """[F, P] -> [m, P], in the order of FAST."""
        ...

    def quantiles(self, features: Floats) -> F32:
        """[F, n] -> [k, 3, n] at QUANTILES, in the order of the targets."""
        ...


def fast_rows(targets: tuple[str, ...]) -> list[int]:
    """Places in `targets` of those of FAST that are among them."""
    return [targets.index(name) for name in FAST if name in targets]
