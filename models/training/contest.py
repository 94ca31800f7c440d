"""The kinds of model that are trained on the same rows, and which of them is taken for what."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvferry.models.residual.base import Model
from kvferry.models.residual.forest import Forest
from kvferry.models.residual.network import Network
from kvferry.models.residual.tensors import Tensors
from kvferry.models.training import conformal, forest, network
from kvferry.models.training.rows import F32, Rows
from kvferry.models.training.scores import pinball
from kvferry.policy.correction import QUANTILES, TARGETS

# By how much its loss must be smaller for a forest to be taken, for a decision with it takes longer; and for
# any correction to be taken before none.
FOREST_MARGIN = 0.03
LEAST_GAIN = 0.01
NO_CORRECTION = "structured"


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of model is trained, worked out, and left with some of its targets."""

    fit: Callable[..., Tensors]
    only: Callable[[Tensors, Sequence[int]], Tensors]
    model: Callable[[Tensors, tuple[str, ...]], Model]


KINDS = {
    "network": Kind(network.fit, network.only, Network.of),
    "forest": Kind(forest.fit, forest.only, Forest.of),
}


def quantiles(kind: str, tensors: Tensors, targets: tuple[str, ...], rows: Rows) -> F32:
    """[k, 3, N] corrections of `rows` before calibration; 0 of `structured`."""
    if kind == NO_CORRECTION:
        return np.zeros((len(targets), len(QUANTILES), len(rows)), np.float32)
    return KINDS[kind].model(tensors, targets).quantiles(np.ascontiguousarray(rows.features.T, np.float64))


def losses(kind: str, tensors: Tensors, targets: tuple[str, ...], earlier: Rows, later: Rows) -> list[float]:
    """Pinball losses in `later`, target by target, calibrated in `earlier`: neither was fitted to."""
    before, after = (quantiles(kind, tensors, targets, rows) for rows in (earlier, later))
    known, wanted = earlier.targets, later.targets
    found = []
    for place, target in enumerate(targets):
        column = TARGETS.index(target)
        modes = np.array(conformal.offsets(known[:, column], before[place], earlier.split), np.float32)
        predicted = after[place] + modes[later.split.astype(int)].T
        found.append(pinball(wanted[:, column], np.maximum.accumulate(predicted, axis=0)))
    return found


def choose(losses: Mapping[str, list[float]]) -> tuple[str, list[bool]]:
    """The kind to take, and for which targets it is better than no correction.

    Of the losses, those of no correction among them, each kind's are taken relative to those, 1 where they
    are not smaller. The smallest mean wins; a forest's must be smaller by FOREST_MARGIN.
    """
    none = np.array(losses[NO_CORRECTION])
    relative = {kind: np.array(found) / none for kind, found in losses.items() if kind != NO_CORRECTION}
    helps = {kind: np.nan_to_num(found, nan=1.0) < 1.0 - LEAST_GAIN for kind, found in relative.items()}
    mean = {kind: float(np.where(helps[kind], found, 1.0).mean()) for kind, found in relative.items()}
    best = "forest" if mean["forest"] < mean["network"] * (1.0 - FOREST_MARGIN) else "network"
    if not helps[best].any():
        return NO_CORRECTION, [False] * len(none)
    return best, helps[best].tolist()
