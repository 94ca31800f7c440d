"""Learned models of the size that `kvferry train` makes, for the scripts beside this file.

Their weights are drawn at random: how long a decision takes does not depend on what was learned.
"""

from pathlib import Path

import numpy as np

from kvferry.models.residual.artifact import Artifact
from kvferry.models.residual.load import corrector
from kvferry.models.residual.manifest import SCHEMA, Manifest
from kvferry.models.training.forest import DEPTH, TREES
from kvferry.models.training.network import HIDDEN
from kvferry.policy.correction import QUANTILES, TARGETS, Corrector
from kvferry.policy.features import FEATURE_SET, FEATURES

KINDS = ("network", "forest")


def residual(name: str) -> Corrector | None:
    """`none`, one of KINDS, or a folder that `kvferry train` wrote."""
    if name == "none":
        return None
    return corrector(_drawn(name) if name in KINDS else Artifact.load(Path(name)))


def _drawn(kind: str) -> Artifact:
    rng, outputs, wide = np.random.default_rng(0), len(TARGETS) * len(QUANTILES), len(FEATURES)

    def small(*shape: int) -> np.ndarray:
        return rng.normal(0.0, 0.01, shape).astype(np.float32)

    if kind == "network":
        tensors = {
            "first.weight": small(HIDDEN, wide),
            "first.bias": small(HIDDEN),
            "second.weight": small(HIDDEN, HIDDEN),
            "second.bias": small(HIDDEN),
            "heads.weight": small(outputs, HIDDEN),
            "heads.bias": small(outputs),
            "scale": np.full(len(TARGETS), 0.2, np.float32),
        }
    else:
        trees, inner = outputs * TREES, 2**DEPTH - 1
        tensors = {
            "zero": np.full(wide, -10.0, np.float32),
            "step": np.full(wide, 0.1, np.float32),
            "base": small(outputs),
            "trees": np.full(outputs, TREES, np.int32),
            "feature": rng.integers(0, wide, (trees, inner)).astype(np.uint8),
            "threshold": rng.integers(0, 255, (trees, inner)).astype(np.uint8),
            "leaf": small(trees, inner + 1),
        }
    flat = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    manifest = Manifest(
        schema=SCHEMA, version="", kind=kind, created_s=0.0, feature_set=FEATURE_SET, features=FEATURES,
        low=(-1e6,) * wide, high=(1e6,) * wide, targets=TARGETS, window_from_s=0.0, window_to_s=0.0, rows={},
        data_sha256="0" * 64, weights_sha256="", metrics={}, calibration=dict.fromkeys(TARGETS, flat), seed=0,
        kvferry="0",
    )  # fmt: skip
    return Artifact.pack(manifest, tensors)
