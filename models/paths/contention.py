"""What moves at once cost each other."""

from collections.abc import Iterable

import numpy as np

from kvferry.models.paths.curve import Curve
from kvferry.models.paths.sample import Sample

# Of a move that mostly waits, how long it moved is not known.
MOSTLY = 0.5


def contention(curve: Curve, samples: Iterable[Sample]) -> float | None:
    """c in total_s = alpha + (alone_s - alpha) * (1 + c * (concurrency - 1)): the median, at least 0.

    1 is n-fold, as `policy.link.transfer_s` has it; None without moves at once that mostly move.
    """
    shown = []
    for sample in samples:
        moving_s = curve.predict(sample.moved_bytes, sample.descriptors) - curve.alpha_s
        if sample.concurrency > 1 and moving_s >= MOSTLY * (moving_s + curve.alpha_s):
            times = (sample.total_s - curve.alpha_s) / moving_s
            shown.append((times - 1.0) / (sample.concurrency - 1))
    return max(0.0, float(np.median(shown))) if shown else None
