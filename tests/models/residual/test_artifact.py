"""An artifact is what it was when it was made, or it is refused in one clear line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifacts import artifact, manifest, tensors
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.residual.artifact import MANIFEST_FILE, WEIGHTS_FILE, Artifact, ArtifactError
from kvferry.models.residual.tensors import MAX_WEIGHT_BYTES
from kvferry.policy.features import FEATURES

KINDS = ["structured", "network", "forest"]
GOOD = artifact("forest")


def refusal(manifest_json: bytes, weights: bytes) -> str:
    with pytest.raises(ArtifactError) as caught:
        Artifact.of(manifest_json, weights)
    text = str(caught.value)
    assert "\n" not in text
    assert 10 < len(text) < 400
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_is_the_same_after_it_was_kept(kind: str, tmp_path: Path) -> None:
    made = artifact(kind)
    made.save(tmp_path / "there" / "model")
    found = Artifact.load(tmp_path / "there" / "model")
    assert found.manifest == made.manifest
    assert found.weights == made.weights
    assert sorted(path.name for path in (tmp_path / "there" / "model").iterdir()) == [
        MANIFEST_FILE,
        WEIGHTS_FILE,
    ]
    assert Artifact.of(made.manifest_json, made.weights).version == made.version


def test_a_version_is_its_content() -> None:
    assert GOOD.version == artifact("forest").version
    assert GOOD.version.startswith("m-")
    assert len(GOOD.version) == 14
    others = {artifact("forest", seed=8).version, artifact("forest", scale=0.06).version}
    assert len(others | {GOOD.version}) == 3


def test_json_of_another_layout_is_the_same_model() -> None:
    again = json.dumps(json.loads(GOOD.manifest_json), indent=4).encode()
    assert Artifact.of(again, GOOD.weights).version == GOOD.version


@given(place=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_manifest_is_refused_or_means_the_same(place: int, bit: int) -> None:
    data = bytearray(GOOD.manifest_json)
    data[place % len(data)] ^= 1 << bit
    try:
        found = Artifact.of(bytes(data), GOOD.weights)
    except ArtifactError as error:
        assert "\n" not in str(error)  # noqa: PT017 - or the same is found
    else:
        assert found.manifest == GOOD.manifest


@given(place=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_weights_is_refused(place: int, bit: int) -> None:
    data = bytearray(GOOD.weights)
    data[place % len(data)] ^= 1 << bit
    assert "not those of m-" in refusal(GOOD.manifest_json, bytes(data))


@given(place=st.integers(0, 10**9))
def test_what_is_cut_short_is_refused(place: int) -> None:
    text = GOOD.manifest_json.rstrip()
    assert "cut short" in refusal(text[: place % len(text)], GOOD.weights)
    assert "cut short" in refusal(GOOD.manifest_json, GOOD.weights[: place % len(GOOD.weights)])


@given(place=st.integers(0, 10**9), bit=st.integers(0, 7), end=st.integers(0, 10**9))
def test_damaged_weights_that_fit_their_hash_never_get_further(place: int, bit: int, end: int) -> None:
    """Somebody may have hashed anew what they damaged: the tensors' own checks must hold."""
    from kvferry.models.residual.tensors import read

    data = bytearray(GOOD.weights)
    data[place % len(data)] ^= 1 << bit
    for damaged in (bytes(data), GOOD.weights[: end % len(GOOD.weights)]):
        try:
            found = read(damaged, GOOD.manifest)
        except ArtifactError as error:
            assert "\n" not in str(error)  # noqa: PT017 - or only values changed
        else:
            assert {name: t.shape for name, t in found.items()} == {
                name: t.shape for name, t in GOOD.tensors.items()
            }


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_anything_else_is_refused(manifest_json: bytes, weights: bytes) -> None:
    refusal(manifest_json, weights)
    refusal(GOOD.manifest_json, weights)


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(GOOD.manifest_json), **fields}).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (changed(schema="kvferry.model.v2"), "update kvferry"),
        (changed(schema="kvferry.model.v2", more=[1]), "kvferry.model.v2"),
        (changed(schema="mlflow"), "no model of kvferry"),
        (b"[1, 2]", "no model of kvferry"),
        (b"{}", "no model of kvferry"),
        (b"", "cut short or damaged"),
        (b"[" * 100_000, "cut short or damaged"),
        (b"\xff\xfe{}", "cut short or damaged"),
        (changed(seed=8), "changed after it was made"),
        (changed(more=1), "more"),
        (changed(seed="8"), "seed"),
        (changed(kind=None), "kind"),
        (b" " * (2 << 20), "too large"),
    ],
)
def test_a_foreign_manifest_is_refused(data: bytes, says: str) -> None:
    assert says in refusal(data, GOOD.weights)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"feature_set": "v9"}, "train it anew"),
        ({"features": ("a",)}, "features"),
        ({"kind": "linear"}, "linear"),
        ({"low": (0.0,)}, "range"),
        ({"high": tuple([-60.0] * len(FEATURES))}, "ends before it begins"),
        ({"targets": ("ttft", "ttft")}, "targets"),
        ({"targets": ()}, "0 targets"),
        ({"calibration": {"e2e": ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))}}, "targets"),
        ({"schema": "kvferry.model.v7"}, "update kvferry"),
        ({"high": tuple([1e13] * len(FEATURES))}, "beyond"),
        ({"high": tuple([float("inf")] * len(FEATURES))}, "manifest"),
    ],
)
def test_a_well_hashed_manifest_that_makes_no_sense_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ArtifactError, match=says):
        Artifact.pack(manifest(**changes), tensors("network"))


@pytest.mark.parametrize("kind", ["network", "forest"])
def test_tensors_of_other_shapes_types_or_values_are_refused(kind: str) -> None:
    for name, tensor in tensors(kind).items():
        for bad in (tensor[:-1], tensor.astype(np.float64), tensor.reshape(1, *tensor.shape), tensor.sum()):
            with pytest.raises(ArtifactError):
                Artifact.pack(manifest(kind), {**tensors(kind), name: bad})
        if tensor.dtype == np.float32:
            with pytest.raises(ArtifactError, match="not finite"):
                Artifact.pack(manifest(kind), {**tensors(kind), name: tensor * np.float32(np.nan)})
        with pytest.raises(ArtifactError):
            Artifact.pack(manifest(kind), {key: t for key, t in tensors(kind).items() if key != name})
    with pytest.raises(ArtifactError, match="tensors"):
        Artifact.pack(manifest(kind), {**tensors(kind), "code": np.zeros(3, np.float32)})


def test_trees_that_point_outside_are_refused() -> None:
    good = tensors("forest")
    for name, bad in (
        ("feature", np.full_like(good["feature"], len(FEATURES))),
        ("trees", good["trees"] + 1),
        ("trees", np.concatenate([[-3, 9], good["trees"][2:]]).astype(np.int32)),
        ("step", -good["step"]),
    ):
        with pytest.raises(ArtifactError):
            Artifact.pack(manifest("forest"), {**good, name: bad})


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=rf"{tmp_path.name}.*model\.json"):
        Artifact.load(tmp_path)
    GOOD.save(tmp_path)
    (tmp_path / WEIGHTS_FILE).unlink()
    with pytest.raises(ArtifactError, match="weights"):
        Artifact.load(tmp_path)
    with (tmp_path / WEIGHTS_FILE).open("wb") as file:
        file.truncate(MAX_WEIGHT_BYTES * 64)  # a hole: not to be read whole
    with pytest.raises(ArtifactError, match="too large"):
        Artifact.load(tmp_path)


def test_a_half_written_model_is_none(tmp_path: Path) -> None:
    """A crash between the two files leaves new weights beside the old manifest, or none."""
    GOOD.save(tmp_path)
    (tmp_path / WEIGHTS_FILE).write_bytes(artifact("forest", scale=0.2).weights)
    with pytest.raises(ArtifactError, match="not those of m-"):
        Artifact.load(tmp_path)
