"""Inference is what slow and obvious code makes of the same tensors, within limits, in order and in range."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifacts import artifact, manifest, tensors
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.models.residual.artifact import Artifact
from kvferry.models.residual.forest import Forest
from kvferry.models.residual.load import FAST_LIMITS, LIMITS, corrector
from kvferry.models.residual.network import Network
from kvferry.policy.correction import TARGETS
from kvferry.policy.features import FEATURES

SPLIT = FEATURES.index("split")
KINDS = ["structured", "network", "forest"]


def shown(plans: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    features = rng.normal(0.0, 4.0, (len(FEATURES), plans))
    features[SPLIT] = rng.integers(0, 2, plans)
    return features


def walked(t: dict[str, Any], features: np.ndarray) -> np.ndarray:
    """Every tree of every ensemble for every plan, from the root down."""
    found = np.zeros((len(t["base"]), features.shape[1]))
    for plan in range(features.shape[1]):
        code = np.rint((features[:, plan].astype(np.float32) - t["zero"]) * (np.float32(1) / t["step"]))
        code = np.clip(code, 0, 255)
        tree = 0
        for ensemble, count in enumerate(t["trees"]):
            found[ensemble, plan] = t["base"][ensemble]
            for _ in range(count):
                node = 0
                while node < t["feature"].shape[1]:
                    node = 2 * node + 1 + int(code[t["feature"][tree, node]] > t["threshold"][tree, node])
                found[ensemble, plan] += t["leaf"][tree, node - t["feature"].shape[1]]
                tree += 1
    return found


def propagated(t: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """One plan after the other, in float64."""
    columns = []
    for plan in range(x.shape[1]):
        h = np.maximum(t["first.weight"].astype(float) @ x[:, plan] + t["first.bias"], 0.0)
        h = np.maximum(t["second.weight"].astype(float) @ h + t["second.bias"], 0.0)
        out = (t["heads.weight"].astype(float) @ h + t["heads.bias"]).reshape(-1, 3)
        rise = (out[:, 1:] + np.sqrt(out[:, 1:] ** 2 + 4.0)) / 2.0
        columns.append(np.cumsum(np.column_stack((out[:, :1], rise)) * t["scale"][:, None], axis=1))
    return np.stack(columns, axis=-1)


@given(seed=st.integers(0, 1000), plans=st.integers(1, 6), depth=st.integers(1, 6))
@settings(max_examples=40)
def test_a_forest_is_its_trees(seed: int, plans: int, depth: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, 6).astype(np.int32)
    counts[0] += 1
    total, nodes = int(counts.sum()), 2**depth - 1
    t = tensors("forest", 2, seed) | {
        "trees": counts,
        "feature": rng.integers(0, len(FEATURES), (total, nodes)).astype(np.uint8),
        "threshold": rng.integers(0, 256, (total, nodes)).astype(np.uint8),
        "leaf": rng.normal(size=(total, nodes + 1)).astype(np.float32),
    }
    targets = ("itl", "transfer")
    Artifact.pack(manifest("forest", targets), t)  # it is one
    forest, features = Forest.of(t, targets), shown(plans, seed)
    expected = walked(t, features)
    assert forest.medians(features) == pytest.approx(expected[:1], abs=1e-4)
    ordered = np.maximum.accumulate(expected.reshape(2, 3, plans), axis=1)
    assert forest.quantiles(features) == pytest.approx(ordered, abs=1e-4)


@given(seed=st.integers(0, 1000), plans=st.integers(1, 6))
def test_a_network_is_its_layers(seed: int, plans: int) -> None:
    t, features = tensors("network", 3, seed, scale=0.3), shown(plans, seed)
    network = Network.of(t, ("queue", "itl", "ttft"))
    expected = propagated(t, features)
    assert network.quantiles(features) == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert network.medians(features) == pytest.approx(expected[[2, 1], 0], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.05, 100.0])
@pytest.mark.parametrize("targets", [TARGETS, ("itl", "queue")])
def test_quantiles_rise_within_limits_and_have_the_medians(
    kind: str, scale: float, targets: tuple[str, ...]
) -> None:
    offsets = {target: ((0.1, 0.2, -5.0), (-0.1, 0.0, 0.3)) for target in targets}
    learned = corrector(artifact(kind, targets, scale=scale, calibration=offsets))
    features = shown(50)
    correction = learned.correct(features)
    assert correction.all_inside
    assert correction.inside.all()
    quantiles = correction.quantiles([3, 3, 20])
    assert quantiles.shape == (7, 3, 3)
    for target, found, limit in zip(TARGETS, quantiles, LIMITS, strict=True):
        if target in targets or target in ("ttft", "itl"):
            assert (np.diff(found, axis=0) >= 0.0).all()
            assert (np.abs(found) <= limit).all()
        else:
            assert np.isnan(found).all()
    assert (quantiles[0, 0] == correction.ttft[[3, 3, 20]]).all()
    assert (quantiles[1, 0] == correction.itl[[3, 3, 20]]).all()
    assert (np.abs([correction.ttft, correction.itl]) <= FAST_LIMITS).all()
    again = learned.correct(features)
    assert (again.ttft == correction.ttft).all()
    assert learned.correct(features[:, 3:4]).ttft == pytest.approx(correction.ttft[3:4], abs=1e-3)


def test_offsets_are_those_of_the_plans_mode() -> None:
    offsets = {"ttft": ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)), "queue": ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))}
    learned = corrector(artifact("structured", ("ttft",), calibration=offsets))
    features = shown(2)
    features[SPLIT] = (0.0, 1.0)
    correction = learned.correct(features)
    assert correction.ttft == pytest.approx((0.1, 0.5))
    assert correction.itl == pytest.approx((0.0, 0.0))
    quantiles = correction.quantiles([0, 1])
    assert pytest.approx(np.array(offsets["ttft"])) == quantiles[0].T
    assert pytest.approx(np.array(offsets["queue"])) == quantiles[TARGETS.index("queue")].T
    assert np.isnan(quantiles[TARGETS.index("repack")]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_plans_unlike_those_it_was_trained_on_are_named(kind: str) -> None:
    low, high = np.full(len(FEATURES), -30.0), np.full(len(FEATURES), 30.0)
    low[5] = high[5] = 2.0
    learned = corrector(artifact(kind, low=tuple(low.tolist()), high=tuple(high.tolist())))
    features = shown(4)
    features[5] = (2.0, 2.01, 2.0, 2.03)  # of the second, too little to matter
    features[2, 2] = 1e38
    with np.errstate(all="raise"):
        correction = learned.correct(features)
        quantiles = correction.quantiles([0, 1, 2, 3])
    assert correction.inside.tolist() == [True, True, False, False]
    assert not correction.all_inside
    assert np.isfinite(quantiles).all()
    assert "sequences 1e+38 is outside -33.02 .. 33.02" in correction.why_not(2)
    assert f"{FEATURES[5]} 2.03" in correction.why_not(3)
    assert learned.version in correction.why_not(3)
    assert correction.why_not(0) == ""


def test_no_weights_within_limits_make_what_is_no_number() -> None:
    worst = {
        name: np.full_like(tensor, -1e6 if "second" in name else 1e6)
        for name, tensor in tensors("network").items()
    }
    calibration = {target: ((1e12,) * 3, (-1e12,) * 3) for target in TARGETS}
    wide = {"low": (-1e12,) * len(FEATURES), "high": (1e12,) * len(FEATURES)}
    for sign in (1, -1):
        weights = {name: tensor * (1 if name == "scale" else sign) for name, tensor in worst.items()}
        made = Artifact.pack(manifest(calibration=calibration, **wide), weights)
        correction = corrector(made).correct(np.full((len(FEATURES), 2), 1e12))
        assert np.isfinite(correction.ttft).all()
        assert np.isfinite(correction.quantiles([0, 1])).all()


def test_needs_neither_torch_nor_scikit_learn() -> None:
    code = """
import sys
for name in ("torch", "sklearn", "scipy", "pandas", "pyarrow"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
import numpy as np
from artifacts import artifact
from kvferry.models.residual.load import corrector
from kvferry.policy.features import FEATURES
for kind in ("structured", "network", "forest"):
    found = corrector(artifact(kind)).correct(np.zeros((len(FEATURES), 5)))
    assert found.quantiles([0]).shape == (7, 3, 1)
print("ok")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "ok\n", done.stderr
