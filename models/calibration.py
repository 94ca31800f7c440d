"""By how much predictions have been off of late, for each mode: what the next ones are corrected by."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

KEEP = 0.98
# Asymmetric: a mode believed to be faster than it is draws requests, and so shows better.
LEAST, MOST = -0.7, 1.1
# One sample counts as at most this far off: a request may wait for what has nothing to do with its plan.
FARTHEST = 2.0


class Bias(NamedTuple):
    """ln(actual / predicted) of TTFT and of ITL."""

    ttft: float = 0.0
    itl: float = 0.0


@dataclass(slots=True)
class Calibration:
    """b <- KEEP * b + (1 - KEEP) * ln(actual / uncorrected), within [LEAST, MOST], per mode.

    Uncorrected is the prediction without the bias that it was made with, predicted * exp(-included): were
    the corrected one compared, b would settle at half of what is missing; and were the bias of now taken
    off instead of the one of then, hundreds of requests in flight would make b swing without end. Where
    only parts of a prediction are corrected, b settles where predictions are right on (log) average.
    Source: rule X of the scoring study.
    """

    _by_mode: list[Bias] = field(default_factory=lambda: [Bias(), Bias()])

    def bias(self, *, split: bool) -> Bias:
        """What predictions of a mode are to be corrected by now."""
        return self._by_mode[split]

    @property
    def ttft(self) -> tuple[float, float]:
        """Of colocated and split requests, as `State.ttft_bias` has them."""
        return self._by_mode[0].ttft, self._by_mode[1].ttft

    @property
    def itl(self) -> tuple[float, float]:
        """Of colocated and split requests, as `State.itl_bias` has them."""
        return self._by_mode[0].itl, self._by_mode[1].itl

    def observe(
        self,
        split: bool,
        predicted_ttft_s: float | None,
        ttft_s: float | None,
        predicted_itl_s: float | None,
        itl_s: float | None,
        included: Bias | None = None,
    ) -> None:
        """A request has ended. `included`: the bias that its predictions were made with (None: that of now).

        What is missing, not finite or not positive says nothing.
        """
        old = self._by_mode[split]
        then = old if included is None else included
        self._by_mode[split] = Bias(
            _moved(old.ttft, then.ttft, predicted_ttft_s, ttft_s),
            _moved(old.itl, then.itl, predicted_itl_s, itl_s),
        )


def _moved(bias: float, included: float, predicted_s: float | None, actual_s: float | None) -> float:
    if predicted_s is None or actual_s is None or not math.isfinite(included):
        return bias
    if not (0.0 < predicted_s < math.inf and 0.0 < actual_s < math.inf):
        return bias
    off = math.log(actual_s) - math.log(predicted_s) + included
    off = min(max(off, -FARTHEST), FARTHEST)
    return min(max(KEEP * bias + (1.0 - KEEP) * off, LEAST), MOST)
