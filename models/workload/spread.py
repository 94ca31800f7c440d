"""Time stamps that were rounded to steps, spread again inside them.

A trace stamped every 3 s shows bursts that no user sent: all of a step's requests at once.
"""

import numpy as np

from kvferry.models.workload.base import Floats

TOLERANCE = 0.01  # of a step, by which gaps may differ from a multiple of it
MIN_STAMPS = 4


def step_of(times_s: Floats) -> float:
    """The step in seconds to which sorted times were rounded, 0 when they were not.

    They were when requests share stamps (at least 1.5 to each) and nine in ten gaps between stamps
    are multiples of one step.
    """
    stamps = np.unique(times_s)
    if len(stamps) < MIN_STAMPS or len(times_s) < 1.5 * len(stamps):
        return 0.0
    gaps = np.diff(stamps)
    shortest = np.quantile(gaps, 0.1, method="lower")
    steps = gaps / shortest
    nearest = np.rint(steps)
    if np.mean(np.abs(steps - nearest) <= TOLERANCE * nearest) < 0.9:
        return 0.0
    return float(np.median(gaps[nearest == 1]))


def spread(times_s: Floats, step_s: float, rng: np.random.Generator) -> Floats:
    """Each time moved by a uniform part of the step; sorted, so that the order of requests stays."""
    return np.sort(times_s + rng.uniform(0.0, step_s, len(times_s)))
