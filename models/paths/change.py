"""Whether a path is still what it was when it was fitted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvferry.models.paths.curve import Curve
from kvferry.models.paths.fit import Fit
from kvferry.models.paths.sample import Sample
from kvferry.models.paths.words import gb_s, us
from kvferry.models.terms.change import Change

# What two runs on the same path may differ by: these are shared machines.
LEAST_NOISE = 0.15
CLEAR = 1.5
# A small move tells nothing of the bandwidth.
MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class Changed:
    """`slower`: time of a move of `moved_bytes` now over before, below 1 where it is faster."""

    slower: float
    moved_bytes: float
    words: str


def changed(
    former: Curve,
    now: Curve,
    small_bytes: float = 2.0**16,
    large_bytes: float = 2.0**28,
    doubt: float = 0.0,
) -> Changed | None:
    """How two fits of a path differ, by more than CLEAR at either end of what is moved; None: they do not.

    `doubt`: what the fits err, together, which a change must exceed as well.
    """
    found = []
    for moved in (large_bytes, small_bytes):
        slower = now.predict(moved) / former.predict(moved)
        found.append((abs(math.log(slower)), slower, moved))
    apart, slower, moved = max(found, key=lambda each: each[0])
    if apart <= math.log(CLEAR * (1.0 + doubt)):
        return None
    way = f"{slower:.2g} times slower" if slower > 1.0 else f"{1.0 / slower:.2g} times faster"
    if moved == large_bytes:
        was, is_now = gb_s(former.beta_bytes_per_s), gb_s(now.beta_bytes_per_s)
    else:
        was, is_now = us(former.predict(moved)), us(now.predict(moved))
    return Changed(slower, moved, f"{way} than before ({is_now}, was {was})")


def since(former: Fit, samples: Sequence[Sample]) -> int | None:
    """From which of the samples, in the order of their time, on large moves no longer fit; None: they do.

    Two cumulative sums of ln(took / predicted) over the fit's own error: four moves that are clearly off.
    """
    watch, noise, start = Change(), max(former.median_error, LEAST_NOISE), 0
    for at, sample in enumerate(samples):
        expected_s = former.predict(sample.moved_bytes, sample.descriptors, sample.concurrency - 1)
        if expected_s - former.curve.alpha_s < MOSTLY * expected_s:
            continue
        if max(watch.up, watch.down) == 0.0:
            start = at
        if watch.seen(math.log(sample.total_s / expected_s) / noise):
            return start
    return None
