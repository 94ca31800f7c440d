"""Small models to test with."""

from typing import Any

import numpy as np

from kvferry.models.residual.artifact import Artifact
from kvferry.models.residual.manifest import SCHEMA, Manifest
from kvferry.policy.correction import QUANTILES, TARGETS
from kvferry.policy.features import FEATURE_SET, FEATURES

NONE = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


def manifest(kind: str = "network", targets: tuple[str, ...] = TARGETS, **changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "version": "",
        "kind": kind,
        "created_s": 1.8e9,
        "feature_set": FEATURE_SET,
        "features": FEATURES,
        "low": tuple([-50.0] * len(FEATURES)),
        "high": tuple([1e7] * len(FEATURES)),
        "targets": () if kind == "structured" else targets,
        "window_from_s": 1.0,
        "window_to_s": 2.0,
        "rows": {"train": 70, "calibrate": 15, "test": 15},
        "data_sha256": "0" * 64,
        "weights_sha256": "",
        "metrics": {"ttft": {"median_ape": 0.1}},
        "calibration": {target: NONE for target in targets},
        "seed": 7,
        "kvferry": "0.1.0",
    }
    return Manifest(**{**fields, **changes})


def tensors(kind: str, targets: int = len(TARGETS), seed: int = 0, scale: float = 0.05) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> np.ndarray:
        return rng.normal(0.0, scale, shape).astype(np.float32)

    out = targets * len(QUANTILES)
    if kind == "structured":
        return {}
    if kind == "network":
        return {
            "first.weight": drawn(8, len(FEATURES)),
            "first.bias": drawn(8),
            "second.weight": drawn(8, 8),
            "second.bias": drawn(8),
            "heads.weight": drawn(out, 8),
            "heads.bias": drawn(out),
            "scale": np.exp(np.clip(drawn(targets), -1.0, 1.0)),
        }
    trees = np.full(out, 3, np.int32)
    count = int(trees.sum())
    return {
        "zero": np.full(len(FEATURES), -10.0, np.float32),
        "step": np.full(len(FEATURES), 0.1, np.float32),
        "base": drawn(out),
        "trees": trees,
        "feature": rng.integers(0, len(FEATURES), (count, 7)).astype(np.uint8),
        "threshold": rng.integers(60, 200, (count, 7)).astype(np.uint8),
        "leaf": drawn(count, 8),
    }


def artifact(
    kind: str = "network", targets: tuple[str, ...] = TARGETS, scale: float = 0.05, **changes: Any
) -> Artifact:
    return Artifact.pack(manifest(kind, targets, **changes), tensors(kind, len(targets), scale=scale))
