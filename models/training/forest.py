"""Training of boosted trees (`kvferry.models.residual.forest` has their form) with scikit-learn."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvferry.models.residual.forest import MOST, codes
from kvferry.models.residual.tensors import Tensors
from kvferry.models.training.rows import F32
from kvferry.policy.correction import QUANTILES

Progress = Callable[[float], None]
# Small, for every decision walks those of two targets for every plan.
TREES = 20
DEPTH = 3
LEARNING_RATE = 0.3
# Requests above the quantile that a leaf must be able to hold.
MIN_ABOVE = 5
MIN_IN_LEAF = 20
LEAST_STEP = 1e-4


class ExportError(Exception):
    """The exported trees do not say what scikit-learn's do: a version whose insides are not known."""


def fit(features: F32, targets: F32, *, seed: int, progress: Progress = lambda done: None) -> Tensors:
    """The tensors of a forest for [N, F] features and [N, k] targets (NaN: unknown).

    One HistGradientBoostingRegressor per target and quantile, on the features' codes. Leaves hold at least
    MIN_IN_LEAF rows, and MIN_ABOVE above the quantile; boosting stops early where a part of the rows that is
    kept out says so. The same seed gives the same tensors. Raises ImportError where scikit-learn is not
    installed, and ExportError.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    low, high = np.quantile(features, (0.002, 0.998), axis=0).astype(np.float32)
    step = np.maximum((high - low) / np.float32(253.0), np.float32(LEAST_STEP))
    zero = low - step
    seen = codes(features.T, zero[:, np.newaxis], np.reciprocal(step)[:, np.newaxis]).T.astype(np.float32)
    base, counts, trees = [], [], []
    for place in range(targets.shape[1]):
        known = np.isfinite(targets[:, place])
        x, y = seen[known], targets[known, place].astype(np.float64)
        for quantile in QUANTILES:
            model = HistGradientBoostingRegressor(
                loss="quantile",
                quantile=quantile,
                learning_rate=LEARNING_RATE,
                max_iter=TREES,
                max_depth=DEPTH,
                max_leaf_nodes=2**DEPTH,
                min_samples_leaf=max(MIN_IN_LEAF, int(np.ceil(MIN_ABOVE / (1.0 - quantile)))),
                early_stopping=True,
                validation_fraction=0.15,
                n_iter_no_change=8,
                random_state=seed,
            )
            with threadpool_limits(1):  # several gain little, and lose all on a busy machine
                model.fit(x, y)
            grown = [_complete(each[0].nodes) for each in model._predictors]
            base.append(float(np.ravel(model._baseline_prediction)[0]))
            counts.append(len(grown))
            trees += grown
            _check(model, base[-1], grown, x[:200])
            progress(len(base) / (targets.shape[1] * len(QUANTILES)))
    if not trees:  # a forest has at least one
        trees, counts[0] = [_empty()], 1
    feature, threshold, leaf = (np.stack(column) for column in zip(*trees, strict=True))
    return {
        "zero": zero,
        "step": step,
        "base": np.array(base, np.float32),
        "trees": np.array(counts, np.int32),
        "feature": feature,
        "threshold": threshold,
        "leaf": leaf,
    }


def only(tensors: Tensors, targets: Sequence[int]) -> Tensors:
    """The same forest with the ensembles of some of its targets, in their order."""
    ensembles = [len(QUANTILES) * target + place for target in targets for place in range(len(QUANTILES))]
    owner = np.repeat(np.arange(len(tensors["trees"])), tensors["trees"])
    counts = tensors["trees"][ensembles]
    kept = np.isin(owner, ensembles)
    if not kept.any():
        kept[0], counts[0] = True, 1
    trees = {name: tensors[name][kept] for name in ("feature", "threshold", "leaf")}
    return {**tensors, **trees, "base": tensors["base"][ensembles], "trees": counts}


Tree = tuple[NDArray[np.uint8], NDArray[np.uint8], F32]


def _empty() -> Tree:
    inner = 2**DEPTH - 1
    return np.zeros(inner, np.uint8), np.full(inner, 255, np.uint8), np.zeros(inner + 1, np.float32)


def _complete(nodes: NDArray[Any]) -> Tree:
    """A tree of scikit-learn's, its leaves repeated down to DEPTH."""
    feature, threshold, leaf = _empty()

    def fill(source: int, place: int) -> None:
        node = nodes[source]
        if place >= len(feature):
            leaf[place - len(feature)] = node["value"]
        elif node["is_leaf"]:
            for child in (2 * place + 1, 2 * place + 2):
                fill(source, child)
        else:
            feature[place] = node["feature_idx"]
            threshold[place] = np.clip(np.floor(node["num_threshold"]), 0, MOST)
            fill(int(node["left"]), 2 * place + 1)
            fill(int(node["right"]), 2 * place + 2)

    fill(0, 0)
    return feature, threshold, leaf


def _check(model: Any, base: float, trees: list[Tree], x: F32) -> None:
    found = np.full(len(x), base)
    for feature, threshold, leaf in trees:
        place = np.zeros(len(x), np.intp)
        for _ in range(DEPTH):
            right = x[np.arange(len(x)), feature[place]] > threshold[place]
            place = 2 * place + 1 + right
        found += leaf[place - len(feature)]
    if not np.allclose(found, model.predict(x), rtol=1e-4, atol=1e-4):
        raise ExportError("trees of this version of scikit-learn cannot be exported")
