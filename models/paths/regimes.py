"""The curve of one regime, or of two, that is nearest to measured cells; its parts add up or overlap."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from kvferry.models.paths.curve import Curve
from kvferry.models.paths.nonnegative import least_deviations
from kvferry.models.paths.sample import Cells
from kvferry.policy.candidates import Floats

# A regime is told by at least so many cells and so many different sizes.
LEAST_CELLS = 3
LEAST_SIZES = 2
# Of finding out which part of a move is the larger one.
ROUNDS = 4
# What a column is of, in both kinds of curve.
_START, _BYTES, _PIECES = range(3)
_ONE = np.array([_START, _BYTES, _PIECES])
_TWO = np.array([_START, _BYTES, _BYTES, _PIECES, _BYTES, _PIECES])


def one_regime(seen: Cells, *, overlapped: bool = False) -> Curve:
    """The line with the least sum of relative errors."""
    columns = np.stack([np.ones(len(seen)), seen.moved_bytes, seen.descriptors], axis=1)

    def made(of: Floats) -> Curve:
        alpha_s, s_per_byte, gamma_s = of.tolist()
        return Curve(alpha_s, s_per_byte, gamma_s, overlapped=overlapped)

    curve = made(_solve(columns, seen))
    return _larger_part(curve, columns, _ONE, seen, made) if overlapped else curve


def two_regimes(seen: Cells, *, overlapped: bool = False) -> Curve | None:
    """The best of all splits between two measured sizes; None where no regime could be told."""
    tried = [(off(curve, seen).sum(), at, curve) for at, curve in enumerate(_splits(seen, overlapped))]
    return min(tried)[2] if tried else None


def off(curve: Curve, seen: Cells) -> Floats:
    """|predicted - seen| / seen of every cell."""
    predicted = curve.predict_all(seen.moved_bytes, seen.descriptors)
    return np.asarray(np.abs(predicted / seen.total_s - 1.0), dtype=np.float64)


def _splits(seen: Cells, overlapped: bool) -> Iterator[Curve]:
    sizes = np.unique(seen.moved_bytes)
    start = one_regime(seen, overlapped=True) if overlapped else None
    for low, high in zip(sizes[LEAST_SIZES - 1 :], sizes[LEAST_SIZES : 1 - LEAST_SIZES], strict=False):
        late = int((seen.moved_bytes >= high).sum())
        if min(late, len(seen) - late) >= LEAST_CELLS:
            # Anything between would give the same times at the measured sizes as one of the two ends.
            yield _settled(_at(seen, float(low), start), float(low), float(high))
            yield _settled(_at(seen, float(high) - 1.0, start), float(low), float(high))


def _at(seen: Cells, split_bytes: float, start: Curve | None) -> Curve:
    """`start`: a curve whose parts overlap; without one they do not."""
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

    def made(of: Floats) -> Curve:
        alpha_s, s_per_byte, late_s_per_byte, gamma_s, jump_s, late_gamma_s = of.tolist()
        late = jump_s, late_s_per_byte, late_gamma_s
        return Curve(alpha_s, s_per_byte, gamma_s, split_bytes, *late, overlapped=start is not None)

    if start is None:
        return made(_solve(columns, seen))
    return _larger_part(start, columns, _TWO, seen, made)


def _larger_part(
    start: Curve, columns: Floats, kinds: np.ndarray, seen: Cells, made: Callable[[Floats], Curve]
) -> Curve:
    """The nearest curve whose parts overlap: which part is the larger one in a cell follows from the curve
    before, from `start` on, until none changes."""
    curve, before, tried = start, np.zeros(0), []
    for _ in range(ROUNDS):
        bytes_s, pieces_s = curve.parts(seen.moved_bytes, seen.descriptors)
        larger = np.where(bytes_s >= pieces_s, _BYTES, _PIECES)
        if np.array_equal(larger, before):
            break
        counts = (kinds == _START) | (kinds == larger[:, None])
        curve, before = made(_solve(columns * counts, seen)), larger
        tried.append(curve)
    return min(tried, key=lambda each: float(off(each, seen).sum()))


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
