"""What is said of a model beside its weights: by whom, from which data, how good, and for which plans."""

import hashlib
import re

import msgspec

from kvferry.policy.correction import TARGETS
from kvferry.policy.features import FEATURE_SET, FEATURES

SCHEMA = "kvferry.model.v1"
# `structured`: no correction beat none, so that there are only the offsets of `calibration`.
KINDS = ("structured", "network", "forest")
MAX_MANIFEST_BYTES = 1 << 20
# With MAX_WEIGHT of `tensors`: no model within them gets to what is no number on its way.
MAX_RANGE = 1e12
Offsets = tuple[float, float, float]
_SCHEMA_NAME = re.compile(r"kvferry\.model\.v(\d{1,9})")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ArtifactError(Exception):
    """A model cannot be used; the message says why in one line."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`model.json`. Times in Unix seconds.

    version: "m-" and 12 hex digits of the SHA-256 of all the rest as canonical JSON, `weights_sha256` among
    it, so that a version's name says its content. low, high: [F], where the features of what it was trained
    on lay. targets: what the weights correct; calibration: for those and others, what is added to the
    logarithms of the three quantiles, for colocated and for split plans. window_*_s: when what it was
    trained and calibrated on was decided; what it was tested on is later. metrics: by target, on the test
    rows. notes: what was left out or thinned, and why which kind was taken.
    """

    schema: str
    version: str
    kind: str
    created_s: float
    feature_set: str
    features: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    targets: tuple[str, ...]
    window_from_s: float
    window_to_s: float
    rows: dict[str, int]
    data_sha256: str
    weights_sha256: str
    metrics: dict[str, dict[str, float]]
    calibration: dict[str, tuple[Offsets, Offsets]]
    seed: int
    kvferry: str
    notes: tuple[str, ...] = ()

    @property
    def content_version(self) -> str:
        """The version that this content has."""
        everything = msgspec.to_builtins(self)
        del everything["version"]
        canonical = msgspec.json.encode(everything, order="sorted")
        return "m-" + hashlib.sha256(canonical).hexdigest()[:12]

    def named(self) -> "Manifest":
        """Itself, with its version."""
        return msgspec.structs.replace(self, version=self.content_version)

    def to_json(self) -> bytes:
        """Canonical: sorted, two spaces deep, the same bytes for the same content."""
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=2) + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> "Manifest":
        """Verified, but for the weights. Raises ArtifactError."""
        if len(data) > MAX_MANIFEST_BYTES:
            raise ArtifactError(f"the manifest is too large: {len(data)} bytes, most {MAX_MANIFEST_BYTES}")
        _check_schema(data)
        try:
            found = msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ArtifactError(f"the manifest does not follow {SCHEMA}: {_one_line(error)}") from error
        if found.version != found.content_version:
            raise ArtifactError(
                f"the manifest was changed after it was made: it is named {_short(found.version)},"
                f" its content is {found.content_version}"
            )
        found._check()
        return found

    def _check(self) -> None:
        if self.feature_set != FEATURE_SET:
            raise ArtifactError(
                f"the model sees feature set {_short(self.feature_set)}, this kvferry has {FEATURE_SET}:"
                " train it anew"
            )
        if self.features != FEATURES:
            raise ArtifactError(f"the model's features are not those of feature set {FEATURE_SET}")
        if self.kind not in KINDS:
            raise ArtifactError(f"models of kind {_short(self.kind)} are not known: {', '.join(KINDS)}")
        if len(self.low) != len(FEATURES) or len(self.high) != len(FEATURES):
            raise ArtifactError(f"the model has not one range for each of {len(FEATURES)} features")
        if any(not low <= high for low, high in zip(self.low, self.high, strict=True)):
            raise ArtifactError("the model has a range that ends before it begins")
        strange = sorted({*self.targets, *self.calibration} - set(TARGETS))
        if strange or len(set(self.targets)) != len(self.targets):
            raise ArtifactError(f"the model's targets are not some of {', '.join(TARGETS)}")
        if (self.kind == "structured") == bool(self.targets):
            raise ArtifactError(f"a model of kind {self.kind} with {len(self.targets)} targets")
        offsets = [value for modes in self.calibration.values() for mode in modes for value in mode]
        if not all(abs(value) <= MAX_RANGE for value in (*self.low, *self.high, *offsets)):
            raise ArtifactError(f"the model has a range or a calibration beyond {MAX_RANGE:g}")
        if not _SHA256.fullmatch(self.weights_sha256):
            raise ArtifactError("the manifest's weights_sha256 is none")


def _check_schema(data: bytes) -> None:
    """Before all else: of a newer schema nothing more can be said."""
    try:
        head = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"the manifest is cut short or damaged: {_one_line(error)}") from error
    schema = head.get("schema") if isinstance(head, dict) else None
    named = _SCHEMA_NAME.fullmatch(schema) if isinstance(schema, str) else None
    if named is None:
        raise ArtifactError(f"this is no model of kvferry: its schema is {_short(schema)}, not {SCHEMA}")
    if schema != SCHEMA:
        raise ArtifactError(f"the model is of schema {schema}, this kvferry reads {SCHEMA}: update kvferry")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
