"""From an artifact to what decides with it. Needs numpy, and neither torch nor scikit-learn."""

from dataclasses import dataclass

import numpy as np

from kvferry.models.residual.artifact import Artifact
from kvferry.models.residual.base import FAST, Model, fast_rows
from kvferry.models.residual.forest import Forest
from kvferry.models.residual.network import Network
from kvferry.policy.candidates import Bools, Floats
from kvferry.policy.correction import QUANTILES, TARGETS, Correction, Corrector
from kvferry.policy.features import FEATURES

SPLIT = FEATURES.index("split")
# The largest correction as a logarithm: of TTFT and ITL by a factor of 20; a term that was predicted as
# nothing may need any.
LIMITS = np.array([3.0 if target in FAST else 10.0 for target in TARGETS])[:, np.newaxis, np.newaxis]
FAST_LIMITS = LIMITS[: len(FAST), 0]
# How far outside what it was trained on a feature may lie: a part of that range, and a little where that
# is but one value.
MARGIN = 0.05
LEAST_MARGIN = 0.02


def corrector(artifact: Artifact) -> Corrector:
    """What decides with this model."""
    manifest = artifact.manifest
    kinds: dict[str, type[Network] | type[Forest]] = {"network": Network, "forest": Forest}
    kind = kinds.get(manifest.kind)
    offsets = np.full((2, len(TARGETS), len(QUANTILES)), np.nan)
    offsets[:, : len(FAST)] = 0.0
    for target in (*manifest.targets, *manifest.calibration):
        offsets[:, TARGETS.index(target)] = manifest.calibration.get(target, 0.0)
    colocated, split = offsets[:, :, :, np.newaxis]
    low, high = np.array(manifest.low), np.array(manifest.high)
    margin = MARGIN * (high - low) + LEAST_MARGIN
    return Residual(
        version=manifest.version,
        model=kind.of(artifact.tensors, manifest.targets) if kind else None,
        rows=[TARGETS.index(target) for target in manifest.targets],
        fast_rows=[FAST.index(manifest.targets[row]) for row in fast_rows(manifest.targets)],
        offsets=colocated,
        more_if_split=split - colocated,
        low=(low - margin)[:, np.newaxis],
        high=(high + margin)[:, np.newaxis],
    )


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """A model, its calibration and where it was trained. `rows` and `fast_rows`: where its targets are in
    TARGETS and FAST; `offsets` and `more_if_split` are [7, 3, 1], `low` and `high` [F, 1]."""

    version: str
    model: Model | None
    rows: list[int]
    fast_rows: list[int]
    offsets: Floats
    more_if_split: Floats
    low: Floats
    high: Floats

    def correct(self, features: Floats) -> Correction:
        within = features >= self.low
        within &= features <= self.high
        all_inside = bool(within.all())
        inside: Bools = within[0] if all_inside else np.logical_and.reduce(within, axis=0)
        known = features if all_inside else np.clip(features, self.low, self.high)
        medians = self._medians(known)
        return Correction(
            ttft=medians[0],
            itl=medians[1],
            inside=inside,
            all_inside=all_inside,
            quantiles=lambda rows: self._quantiles(known.take(rows, axis=1), medians.take(rows, axis=1)),
            why_not=lambda row: self._why_not(features[:, row]),
        )

    def _medians(self, features: Floats) -> Floats:
        """[2, P]: of FAST."""
        medians: Floats = self.more_if_split[: len(FAST), 0] * features[SPLIT]
        medians += self.offsets[: len(FAST), 0]
        if self.model is not None and len(self.fast_rows) == len(FAST):
            medians += self.model.medians(features)
        elif self.model is not None and self.fast_rows:
            medians[self.fast_rows] += self.model.medians(features)
        np.maximum(medians, -FAST_LIMITS, out=medians)
        np.minimum(medians, FAST_LIMITS, out=medians)
        return medians

    def _quantiles(self, features: Floats, medians: Floats) -> Floats:
        """[7, 3, n]; the medians of FAST are those that were decided with."""
        found: Floats = self.offsets + self.more_if_split * features[SPLIT]
        if self.model is not None:
            found[self.rows] += self.model.quantiles(features)
        np.clip(found, -LIMITS, LIMITS, out=found)
        found[: len(FAST), 0] = medians
        np.maximum.accumulate(found, axis=1, out=found)
        return found

    def _why_not(self, features: Floats) -> str:
        low, high = self.low[:, 0], self.high[:, 0]
        out = np.flatnonzero(~((features >= low) & (features <= high)))
        if not len(out):
            return ""
        first = out[0]
        return (
            f"{FEATURES[first]} {features[first]:.4g} is outside {low[first]:.4g} .. {high[first]:.4g},"
            f" where {self.version} was trained"
        )
