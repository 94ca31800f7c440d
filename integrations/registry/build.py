"""From bytes in the store to a model that decides: verified, built and tried, off the event loop."""

import numpy as np

from kvferry.integrations.registry.arms import Model
from kvferry.integrations.registry.guard import Fault, Guarded
from kvferry.models.residual.artifact import Artifact
from kvferry.models.residual.load import corrector
from kvferry.models.residual.manifest import ArtifactError
from kvferry.policy.correction import Correction


def build(version: str, manifest_json: bytes, weights: bytes, fault: Fault) -> Model:
    """Raises ArtifactError, in one line, when that is not what `version` names, or does not work."""
    artifact = Artifact.of(manifest_json, weights)
    if artifact.version != version:
        raise ArtifactError(f"the store has {artifact.version} in its place")
    faults: list[str] = []
    found = Guarded(corrector(artifact), lambda _, what: faults.append(what))
    low, high = np.array(artifact.manifest.low), np.array(artifact.manifest.high)
    tried: Correction = found.correct(np.column_stack((low, 0.5 * low + 0.5 * high, high)))
    tried.quantiles([0, 1, 2])
    if faults:
        raise ArtifactError(f"it does not work: {faults[0]}")
    return Model(version, Guarded(corrector(artifact), fault))
