"""What measured moves say of a path: a curve, how far it errs, and what moves cost each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from kvferry.models.paths.contention import contention
from kvferry.models.paths.curve import Curve
from kvferry.models.paths.regimes import LEAST_CELLS, off, one_regime, two_regimes
from kvferry.models.paths.sample import Cells, Sample, cells
from kvferry.policy.candidates import Floats

FOLDS = 8
# A curve that knows more must err less than this share of what a simpler one does, and by so much less.
CLEARLY = 0.7
AT_LEAST = 0.03
# How far one cell may be off in that comparison: one that was disturbed shall not decide.
CAP = 1.0


class UnfitError(ValueError):
    """The moves do not tell a path's figures; the message says what to measure."""


@dataclass(frozen=True, slots=True)
class Fit:
    """`median_error` and `max_error`: |predicted - seen| / seen of cells that the curve was fitted without.

    `contention`: what each further move at once adds, in units of the move alone (1: n moves each take n
    times as long); None where nothing was measured. `moves`: samples behind it all.
    """

    curve: Curve
    median_error: float
    max_error: float
    contention: float | None
    moves: int

    def predict(self, moved_bytes: float, descriptors: float = 1.0, in_flight: int = 0) -> float:
        """Seconds of a move while `in_flight` others share the path (n-fold where that is not known)."""
        each = 1.0 if self.contention is None else self.contention
        alone = self.curve.predict(moved_bytes, descriptors)
        return self.curve.alpha_s + (alone - self.curve.alpha_s) * (1.0 + each * in_flight)


def fit(samples: Sequence[Sample]) -> Fit:
    """Relative errors count, medians of repeated moves, outliers little; two regimes, and parts that overlap,
    where a sum of one line errs clearly more on cells it has not seen.

    UnfitError for fewer than 4 different moves, for one size only, and where bytes cost nothing.
    """
    seen = cells(samples)
    if len(seen) <= LEAST_CELLS or np.unique(seen.moved_bytes).size < 2:
        raise UnfitError(f"{len(seen)} different moves tell too little: measure at least 4, of several sizes")
    curve, errors = _chosen(seen)
    if not np.isfinite(curve.beta_bytes_per_s):
        raise UnfitError(
            f"moves of up to {seen.moved_bytes.max():.0f} bytes tell no bandwidth: measure larger ones"
        )
    return Fit(curve, float(np.median(errors)), float(errors.max()), contention(curve, samples), len(samples))


def _chosen(seen: Cells) -> tuple[Curve, Floats]:
    """The simplest curve that does not err clearly more than the best on cells it has not seen; errors."""
    found: list[tuple[float, Curve, Floats]] = []
    for fitted in (one_regime, _two, partial(one_regime, overlapped=True), partial(_two, overlapped=True)):
        curve = fitted(seen)
        # What errs as much on cells that it has seen will err no less on others.
        if not found or _clearly(_mean(off(curve, seen)), min(mean for mean, _, _ in found)):
            errors = _held_out(seen, fitted)
            found.append((_mean(errors), curve, errors))
    best = min(mean for mean, _, _ in found)
    _, curve, errors = next(each for each in found if not _clearly(best, each[0]))
    return curve, errors


def _two(seen: Cells, *, overlapped: bool = False) -> Curve:
    return two_regimes(seen, overlapped=overlapped) or one_regime(seen, overlapped=overlapped)


def _clearly(mean: float, other: float) -> bool:
    return mean < CLEARLY * other and other - mean > AT_LEAST


def _mean(errors: Floats) -> float:
    return float(np.minimum(errors, CAP).mean())


def _held_out(seen: Cells, fitted: Callable[[Cells], Curve]) -> Floats:
    """Errors of every cell by the curve of those outside its fold; each fold runs over all sizes."""
    fold = np.arange(len(seen)) % min(len(seen), FOLDS)
    errors = np.zeros(len(seen))
    for which in range(int(fold.max()) + 1):
        errors[fold == which] = off(fitted(seen.only(fold != which)), seen.only(fold == which))
    return errors
