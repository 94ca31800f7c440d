"""The tensors that a model of each kind has: their names, types and shapes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from kvferry.models.residual.manifest import ArtifactError, Manifest
from kvferry.policy.correction import QUANTILES
from kvferry.policy.features import FEATURES

Tensors = Mapping[str, NDArray[Any]]
MAX_WEIGHT_BYTES = 16 << 20
MAX_WEIGHT = 1e6
MIN_STEP = 1e-6
MAX_HIDDEN = 256
MAX_TREES = 100_000
MAX_DEPTH = 6


def read(weights: bytes, manifest: Manifest) -> dict[str, NDArray[Any]]:
    """What the weights of `manifest` hold, as it should be for its kind. Raises ArtifactError."""
    try:
        tensors = load(weights)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"the weights are no safetensors: {' '.join(str(error).split())[:200]}"
        ) from error
    for name, tensor in tensors.items():
        if not (np.abs(tensor) <= MAX_WEIGHT).all():
            raise ArtifactError(
                f"the weights hold a {name[:40]!r} that is not finite, or beyond {MAX_WEIGHT:g}"
            )
    _CHECKS[manifest.kind](manifest, tensors)
    return tensors


def _of_structured(manifest: Manifest, tensors: Tensors) -> None:
    _are(tensors, {})


def _of_network(manifest: Manifest, tensors: Tensors) -> None:
    """y = heads(relu(second(relu(first x)))), a head having its quantiles' rows one after the other."""
    sizes = [tensors[name].size if name in tensors else 0 for name in ("first.bias", "second.bias")]
    if not all(1 <= size <= MAX_HIDDEN for size in sizes):
        raise ArtifactError(f"the weights have layers of {sizes} units, of 1 to {MAX_HIDDEN}")
    first, second = sizes
    out = len(manifest.targets) * len(QUANTILES)
    _are(
        tensors,
        {
            "first.weight": (np.float32, (first, len(FEATURES))),
            "first.bias": (np.float32, (first,)),
            "second.weight": (np.float32, (second, first)),
            "second.bias": (np.float32, (second,)),
            "heads.weight": (np.float32, (out, second)),
            "heads.bias": (np.float32, (out,)),
            "scale": (np.float32, (len(manifest.targets),)),
        },
    )
    if not (tensors["scale"] > 0.0).all():
        raise ArtifactError("the weights have a scale that is not positive")


def _of_forest(manifest: Manifest, tensors: Tensors) -> None:
    """Complete trees of one depth, those of an ensemble next to each other: an ensemble is a quantile of a
    target, in the targets' order. A feature's code is rint((x - zero) / step), from 0 to 255; at a node one
    goes on to the right where it is over `threshold`."""
    ensembles = len(manifest.targets) * len(QUANTILES)
    feature = tensors.get("feature", np.zeros((0, 0)))
    trees, nodes = feature.shape if feature.ndim == 2 else (0, 0)
    depth = (nodes + 1).bit_length() - 1
    if not (1 <= trees <= MAX_TREES and 1 <= depth <= MAX_DEPTH and nodes == 2**depth - 1):
        raise ArtifactError(f"the weights have {trees} trees of {nodes} nodes")
    _are(
        tensors,
        {
            "zero": (np.float32, (len(FEATURES),)),
            "step": (np.float32, (len(FEATURES),)),
            "base": (np.float32, (ensembles,)),
            "trees": (np.int32, (ensembles,)),
            "feature": (np.uint8, (trees, nodes)),
            "threshold": (np.uint8, (trees, nodes)),
            "leaf": (np.float32, (trees, nodes + 1)),
        },
    )
    counts = tensors["trees"].astype(np.int64)
    if feature.max() >= len(FEATURES) or counts.min() < 0 or counts.sum() != trees:
        raise ArtifactError("the weights' trees do not fit together")
    if not (tensors["step"] >= MIN_STEP).all():
        raise ArtifactError(f"the weights have a step under {MIN_STEP:g}")


_CHECKS = {"structured": _of_structured, "network": _of_network, "forest": _of_forest}


def _are(tensors: Tensors, expected: Mapping[str, tuple[type[Any], tuple[int, ...]]]) -> None:
    if set(tensors) != set(expected):
        odd = sorted(set(tensors) ^ set(expected))
        raise ArtifactError(f"the weights' tensors are not those of the model's kind: {odd[0][:40]!r}")
    for name, (kind, shape) in expected.items():
        found = tensors[name]
        if found.dtype != kind or found.shape != shape:
            raise ArtifactError(
                f"the weights' {name} is {found.dtype} {found.shape}, not {np.dtype(kind)} {shape}"
            )
