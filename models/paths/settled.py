"""Whether a path changed while it was measured, and what is true of it now."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvferry.models.paths.change import CLEAR, Changed, changed, since
from kvferry.models.paths.fit import Fit, UnfitError, fit
from kvferry.models.paths.sample import Sample

# Moves before and after that are alike say whether it is the path, and not what was moved, that changed.
LEAST_ALIKE = 2
# A move of this part of the largest one is large: small ones may wait for what is left of those before them.
LARGE = 16


@dataclass(frozen=True, slots=True)
class Settled:
    """`fitted`: of the samples from `since` on (0: of all); `change`: what it is against those before."""

    fitted: Fit
    since: int = 0
    change: Changed | None = None


def settled(samples: Sequence[Sample]) -> Settled:
    """The fit of a path as it is at the end of the samples, which are in the order of their time.

    Where the path changed once, one half of the samples is all of one kind: the half that fits better is
    held against the others. UnfitError as of `fit`.
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
    middle = len(samples) // 2
    halves: list[tuple[float, int | None]] = []
    for half, later in ((samples[:middle], True), (samples[middle:], False)):
        try:
            fitted = fit(half)
        except UnfitError:
            continue
        if later:
            at = since(fitted, samples)
        else:
            back = since(fitted, samples[::-1])
            at = None if back is None else len(samples) - back
        halves.append((fitted.median_error, at))
    for _, at in sorted(halves, key=lambda half: half[0]):
        if at is not None and 0 < at < len(samples) and _apart(samples[:at], samples[at:]):
            return at
    return None


def _apart(before: Sequence[Sample], after: Sequence[Sample]) -> bool:
    """Whether large moves that were made before as well as after clearly differ."""
    was, now = _medians(before), _medians(after)
    largest = max(moved for moved, _ in (*was, *now))
    larger = [key for key in was.keys() & now.keys() if key[0] * LARGE >= largest]
    if len(larger) < LEAST_ALIKE:
        return False
    off = np.median([math.log(now[key] / was[key]) for key in larger])
    return abs(float(off)) > math.log(CLEAR)


def _medians(samples: Sequence[Sample]) -> dict[tuple[int, int], float]:
    found: dict[tuple[int, int], list[float]] = {}
    for one in samples:
        found.setdefault((one.moved_bytes, one.descriptors), []).append(one.total_s)
    return {key: float(np.median(each)) for key, each in found.items()}
