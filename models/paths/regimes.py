"""The curve of one regime, or of two, that is nearest to measured cells."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kvferry.models.paths.curve import Curve
from kvferry.models.paths.nonnegative import least_deviations
from kvferry.models.paths.sample import Cells
from kvferry.policy.candidates import Floats

# A regime is told by at least so many cells and so many different sizes.
LEAST_CELLS = 3
LEAST_SIZES = 2


def one_regime(seen: Cells) -> Curve:
    """The straight line with the least sum of relative errors."""
    columns = np.stack([np.ones(len(seen)), seen.moved_bytes, seen.descriptors], axis=1)
    alpha_s, s_per_byte, gamma_s = _solve(columns, seen).tolist()
    return Curve(alpha_s, s_per_byte, gamma_s)


def two_regimes(seen: Cells) -> Curve | None:
    """The best of all splits between two measured sizes; None where no regime could be told."""
    tried = [(off(curve, seen).sum(), at, curve) for at, curve in enumerate(_splits(seen))]
    return min(tried)[2] if tried else None


def off(curve: Curve, seen: Cells) -> Floats:
    """|predicted - seen| / seen of every cell."""
    predicted = curve.predict_all(seen.moved_bytes, seen.descriptors)
    return np.asarray(np.abs(predicted / seen.total_s - 1.0), dtype=np.float64)


def _splits(seen: Cells) -> Iterator[Curve]:
    sizes = np.unique(seen.moved_bytes)
    for low, high in zip(sizes[LEAST_SIZES - 1 :], sizes[LEAST_SIZES : 1 - LEAST_SIZES], strict=False):
        late = int((seen.moved_bytes >= high).sum())
        if min(late, len(seen) - late) >= LEAST_CELLS:
            # Anything between would give the same times at the measured sizes as one of the two ends.
            yield _settled(_at(seen, float(low)), float(low), float(high))
            yield _settled(_at(seen, float(high) - 1.0), float(low), float(high))


def _at(seen: Cells, split_bytes: float) -> Curve:
    late = (seen.moved_bytes > split_bytes).astype(np.float64)
    first = np.minimum(seen.moved_bytes, split_bytes)
    columns = np.stack(
        [
            np.ones(len(seen)),
            first,
            seen.moved_bytes - first,
            seen.descriptors,
            late,
            late * seen.descriptors,
        ],
        axis=1,
    )
    alpha_s, s_per_byte, late_s_per_byte, gamma_s, jump_s, late_gamma_s = _solve(columns, seen).tolist()
    return Curve(alpha_s, s_per_byte, gamma_s, split_bytes, jump_s, late_s_per_byte, late_gamma_s)


def _settled(curve: Curve, low: float, high: float) -> Curve:
    """The same times at all measured sizes, with the split where the two lines meet if that is between `low`
    and `high` (a shaper's burst ends there), else in the middle."""
    steeper = curve.late_s_per_byte - curve.s_per_byte
    meet = curve.split_bytes - curve.jump_s / steeper if steeper > 0.0 else low
    if low < meet < high:
        return replace(curve, split_bytes=meet, jump_s=0.0)
    middle = (low * high) ** 0.5
    jump_s = curve.jump_s + (middle - curve.split_bytes) * steeper
    return replace(curve, split_bytes=middle, jump_s=jump_s) if jump_s >= 0.0 else curve


def _solve(columns: Floats, seen: Cells) -> Floats:
    # Divided by what was seen, a move that was held up counts at most 1 however long it took.
    return least_deviations(columns / seen.total_s[:, None], np.ones(len(seen)))
