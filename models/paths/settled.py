"""Whether a path changed while it was measured, and what is true of it now."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kvferry.models.paths.change import CLEAR, Changed, changed
from kvferry.models.paths.fit import Fit, UnfitError, fit
from kvferry.models.paths.sample import Sample

# Moves before and after that are alike say whether it is the path, and not what was moved, that changed.
LEAST_ALIKE = 2
# A move of this part of the largest one is large: small ones may wait for what is left of those before them.
LARGE = 16
# Smaller pieces than this tell of the processors that post them, not of the path.
LEAST_PIECE_BYTES = 2**14


@dataclass(frozen=True, slots=True)
class Settled:
    """`fitted`: of the samples from `since` on (0: of all); `change`: what it is against those before."""

    fitted: Fit
    since: int = 0
    change: Changed | None = None


def settled(samples: Sequence[Sample]) -> Settled:
    """The fit of a path as it is at the end of the samples, which are in the order of their time.

    Where the path changed, at one time, moves that are alike say so: nothing is fitted to find that out.
    UnfitError as of `fit`.
    """
    at = _turn(samples)
    if at is not None:
        try:
            before, after = fit(samples[:at]), fit(samples[at:])
        except UnfitError:  # too few on one side to tell more than that it changed
            return Settled(fit(samples))
        doubt = before.median_error + after.median_error
        change = changed(before.curve, after.curve, doubt=doubt)
        if change is not None:
            return Settled(after, at, change)
    return Settled(fit(samples))


def _turn(samples: Sequence[Sample]) -> int | None:
    """From which sample on the path is another one. What moves at once cost each other is no change."""
    places = [place for place, one in enumerate(samples) if one.concurrency == 1]
    alone = [samples[place] for place in places]
    at = _turn_of_alone(alone)
    return None if at is None else places[at]


def _turn_of_alone(samples: Sequence[Sample]) -> int | None:
    """Where large moves fall into two parts in each of which those of a kind are most alike."""
    large = _large(samples)
    places = [place for place, one in enumerate(samples) if _tells(_kind(one), large)]
    apart = [
        _spread(samples[at] for at in places[:cut]) + _spread(samples[at] for at in places[cut:])
        for cut in range(1, len(places))
    ]
    if not apart:
        return None
    at = places[int(np.argmin(apart)) + 1]
    return at if _apart(samples[:at], samples[at:], large) else None


def _apart(before: Sequence[Sample], after: Sequence[Sample], large: float) -> bool:
    """Whether large moves that were made before as well as after clearly differ."""
    was, now = _medians(before), _medians(after)
    larger = [key for key in was.keys() & now.keys() if _tells(key, large)]
    if len(larger) < LEAST_ALIKE:
        return False
    off = np.median([math.log(now[key] / was[key]) for key in larger])
    return abs(float(off)) > math.log(CLEAR)


def _spread(samples: Iterable[Sample]) -> float:
    """Sum of |ln(took / what is usual for such a move)|."""
    return sum(
        float(np.abs(np.log(took) - np.median(np.log(took))).sum()) for took in _times(samples).values()
    )


def _large(samples: Sequence[Sample]) -> float:
    return max((one.moved_bytes for one in samples), default=0) / LARGE


def _tells(kind: tuple[int, int], large: float) -> bool:
    moved, pieces = kind
    return moved >= large and moved >= LEAST_PIECE_BYTES * pieces


def _kind(sample: Sample) -> tuple[int, int]:
    return sample.moved_bytes, sample.descriptors


def _medians(samples: Sequence[Sample]) -> dict[tuple[int, int], float]:
    return {kind: float(np.median(took)) for kind, took in _times(samples).items()}


def _times(samples: Iterable[Sample]) -> dict[tuple[int, int], list[float]]:
    found: dict[tuple[int, int], list[float]] = {}
    for one in samples:
        found.setdefault(_kind(one), []).append(one.total_s)
    return found
