"""A trained model as data: a manifest and tensors, verified before anything uses them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from kvferry.models.residual.manifest import MAX_MANIFEST_BYTES, ArtifactError, Manifest
from kvferry.models.residual.tensors import MAX_WEIGHT_BYTES, read

MANIFEST_FILE = "model.json"
WEIGHTS_FILE = "weights.safetensors"

__all__ = ["MANIFEST_FILE", "WEIGHTS_FILE", "Artifact", "ArtifactError", "Manifest"]


@dataclass(frozen=True, slots=True, eq=False)
class Artifact:
    """One version of a learned model. Made by `of`, `load` or `pack`, which verify it."""

    manifest: Manifest
    weights: bytes
    tensors: Mapping[str, NDArray[Any]]

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def manifest_json(self) -> bytes:
        """As `of` takes it."""
        return self.manifest.to_json()

    @classmethod
    def of(cls, manifest_json: bytes, weights: bytes) -> "Artifact":
        """Raises ArtifactError, in one line, on what is tampered with, cut short, of a newer schema, for
        other features or no model at all."""
        manifest = Manifest.from_json(manifest_json)
        if len(weights) > MAX_WEIGHT_BYTES:
            raise ArtifactError(f"the weights are too large: {len(weights)} bytes, most {MAX_WEIGHT_BYTES}")
        if hashlib.sha256(weights).hexdigest() != manifest.weights_sha256:
            raise ArtifactError(
                f"the weights are not those of {manifest.version}: changed or cut short after it was made"
            )
        return cls(manifest, weights, read(weights, manifest))

    @classmethod
    def pack(cls, manifest: Manifest, tensors: Mapping[str, NDArray[Any]]) -> "Artifact":
        """Of a manifest whose version and weights' hash are still to be filled in. Raises ArtifactError."""
        weights = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
        sha256 = hashlib.sha256(weights).hexdigest()
        fields = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
        return cls.of(Manifest(**{**fields, "weights_sha256": sha256}).named().to_json(), weights)

    @classmethod
    def load(cls, folder: Path) -> "Artifact":
        """From `model.json` and `weights.safetensors` there. Raises ArtifactError, naming the folder."""
        try:
            return cls.of(
                _bytes(folder / MANIFEST_FILE, MAX_MANIFEST_BYTES),
                _bytes(folder / WEIGHTS_FILE, MAX_WEIGHT_BYTES),
            )
        except ArtifactError as error:
            raise ArtifactError(f"{folder}: {error}") from error

    def save(self, folder: Path) -> None:
        """Write both files; the manifest last, and at once, so that half a model is none. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in ((WEIGHTS_FILE, self.weights), (MANIFEST_FILE, self.manifest_json)):
            fresh = folder / f".{name}.new"
            fresh.write_bytes(data)
            fresh.replace(folder / name)


def _bytes(path: Path, most: int) -> bytes:
    """One byte over `most`, where there are more: enough for `of` to refuse it."""
    try:
        with path.open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise ArtifactError(f"{path.name} cannot be read: {error.strerror}") from error
