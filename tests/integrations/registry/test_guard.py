"""A model that fails costs its request the correction, and nothing else."""

from typing import Any

import numpy as np
import pytest

from kvferry.integrations.registry.build import build
from kvferry.integrations.registry.guard import Guarded
from kvferry.models.residual.load import corrector
from kvferry.models.residual.manifest import ArtifactError
from kvferry.policy.correction import Correction
from kvferry.policy.features import FEATURES

SEEN = np.zeros((len(FEATURES), 3))


def correction(**changes: Any) -> Correction:
    told = {
        "ttft": np.full(3, 0.1),
        "itl": np.full(3, -0.1),
        "inside": np.ones(3, dtype=np.bool_),
        "all_inside": True,
        "quantiles": lambda rows: np.full((7, 3, len(rows)), 0.2),
        "why_not": lambda row: "",
    }
    return Correction(**{**told, **changes})


class Model:
    version = "m-1"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def correct(self, features: Any) -> Correction:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def guarded(answer: Any) -> tuple[Guarded, list[tuple[str, str]]]:
    faults: list[tuple[str, str]] = []
    return Guarded(Model(answer), lambda version, what: faults.append((version, what))), faults


def test_a_model_that_works_is_passed_through(artifact: Any) -> None:
    faults: list[str] = []
    inner = corrector(artifact())
    outer = Guarded(inner, lambda _, what: faults.append(what))
    bare, found = inner.correct(SEEN), outer.correct(SEEN)
    assert outer.version == inner.version
    assert found.ttft.tolist() == bare.ttft.tolist()
    assert np.array_equal(found.quantiles([0, 2]), bare.quantiles([0, 2]), equal_nan=True)
    assert not faults


@pytest.mark.parametrize(
    "answer",
    [
        ZeroDivisionError("by\nzero"),
        correction(ttft=np.array((0.0, np.nan, 0.0))),
        correction(itl=np.array((0.0, np.inf, 0.0))),
        correction(ttft=np.full(3, -1e3)),
        correction(ttft=np.zeros(2)),
        None,
    ],
    ids=["raises", "nan", "inf", "absurd", "shape", "nothing"],
)
def test_what_fails_corrects_nothing_and_is_counted(answer: Any) -> None:
    model, faults = guarded(answer)
    found = model.correct(SEEN)
    assert not found.inside.any()
    assert not found.all_inside
    assert "the model failed" in found.why_not(1)
    assert np.isfinite(found.quantiles([0, 1])[:2]).all()
    assert len(faults) == 1
    assert faults[0][0] == "m-1"
    assert "\n" not in faults[0][1]


def test_what_is_outside_may_be_anything() -> None:
    inside = np.array((True, False, True))
    odd = correction(ttft=np.array((0.0, np.nan, 0.1)), inside=inside, all_inside=False)
    model, faults = guarded(odd)
    assert model.correct(SEEN).ttft[2] == 0.1
    assert not faults


@pytest.mark.parametrize("fails", ["raises", "nan"])
def test_quantiles_that_fail_are_the_medians(fails: str) -> None:
    def quantiles(rows: Any) -> Any:
        if fails == "raises":
            raise IndexError("none")
        return np.full((7, 3, len(rows)), np.nan)

    model, faults = guarded(correction(quantiles=quantiles))
    found = model.correct(SEEN)
    assert not faults
    told = found.quantiles([1])
    assert told[0, :, 0] == pytest.approx(0.1)
    assert told[1, :, 0] == pytest.approx(-0.1)
    assert np.isnan(told[2:]).all()
    assert len(faults) == 1


def test_bytes_become_a_model_that_works(artifact: Any) -> None:
    made = artifact()
    model = build(made.version, made.manifest_json, made.weights, lambda *_: None)
    assert model.version == made.version
    assert model.corrector is not None
    assert np.isfinite(model.corrector.correct(SEEN).ttft).all()


def test_what_is_another_version_is_refused(artifact: Any) -> None:
    made = artifact()
    with pytest.raises(ArtifactError, match=f"the store has {made.version} in its place"):
        build("m-0123456789ab", made.manifest_json, made.weights, lambda *_: None)
