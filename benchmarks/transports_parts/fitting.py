"""How well a fitted path predicts moves of sizes and counts that it was not fitted with."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from transports_parts.pair import Pair

from kvferry.integrations.probe import grid
from kvferry.integrations.probe.moves import scattered
from kvferry.models.paths.fit import Fit, fit
from kvferry.models.paths.sample import Sample, cells

FITTED = tuple((size, count) for size in grid.sizes() for count in grid.counts(size))
OTHER_COUNTS = (4, 64, 512)
OTHERS = tuple(
    (2 * size, count)
    for size in grid.sizes()[:-1]
    for count in OTHER_COUNTS
    if 2 * size // count >= grid.LEAST_BLOCK_BYTES
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """`errors`: |predicted - seen| / seen of each of the other cells, `seen` the median of its repeats."""

    way: str
    fitted: Fit
    errors: tuple[float, ...]
    samples: tuple[Sample, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.errors))

    @property
    def p90(self) -> float:
        return float(np.quantile(self.errors, 0.9))


def prediction(pair: Pair, repeats: int, advance: Callable[[], None]) -> Prediction:
    """All cells once in a random order, `repeats` times: a busy minute meets all of them alike."""
    rng, order, samples = np.random.default_rng(0), [*FITTED, *OTHERS], []
    own, theirs = pair.memory.region, pair.peer.regions[0]
    for repeat in range(1 + repeats):
        random.Random(repeat).shuffle(order)
        for cell in order:
            batch = scattered(own, theirs, *cell, rng)
            pair.ask("ours")
            took = pair.transport.submit(pair.peer, batch).wait(60.0)
            if repeat:  # the first round only wakes everything up
                samples.append(Sample(took.moved_bytes, took.descriptors, took.total_s))
        advance()
    return judged(pair.way, samples)


def judged(way: str, samples: list[Sample]) -> Prediction:
    """By the fit of the moves that are the probe's, on the others."""
    fitted = fit([each for each in samples if (each.moved_bytes, each.descriptors) in FITTED])
    other = cells(each for each in samples if (each.moved_bytes, each.descriptors) in OTHERS)
    predicted = fitted.curve.predict_all(other.moved_bytes, other.descriptors)
    errors = np.abs(predicted / other.total_s - 1.0)
    return Prediction(way, fitted, tuple(errors.tolist()), tuple(samples))
