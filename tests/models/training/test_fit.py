"""What is fitted beats no correction where there is something to learn, and is none where there is not."""

import builtins
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvferry.models.residual.artifact import Artifact
from kvferry.models.residual.forest import Forest, codes
from kvferry.models.residual.load import corrector
from kvferry.models.training import conformal, forest, network
from kvferry.models.training import fit as fitting
from kvferry.models.training.contest import choose
from kvferry.models.training.fit import FitError, fit
from kvferry.models.training.rows import Rows
from kvferry.models.training.scores import scores
from kvferry.policy.correction import TARGETS
from kvferry.policy.features import FEATURES

SPLIT, TRANSFER = FEATURES.index("split"), TARGETS.index("transfer")
TTFT = FEATURES.index("log_ttft_s")


def made(count: int, seed: int = 0, *, lesson: float = 1.0, noise: float = 0.1) -> Rows:
    """Long prompts take longer than predicted, by a law that trees and layers can find; transfers are only
    known of split requests, and nobody knows the other terms."""
    rng = np.random.default_rng(seed)
    features = rng.normal(0.0, 1.0, (count, len(FEATURES))).astype(np.float32)
    features[:, SPLIT] = rng.random(count) < 0.4
    split = features[:, SPLIT] > 0
    structured = np.full((count, len(TARGETS)), np.nan, np.float32)
    structured[:, :2] = np.exp(features[:, [TTFT, TTFT - 1]] - 2.0)
    structured[split, TRANSFER] = np.exp(features[split, 3] - 2.0)
    off = rng.normal(0.0, noise, structured.shape)
    off[:, 0] += lesson * (0.4 * (features[:, 0] > 0.3) - 0.2 * split * features[:, 7])
    off[:, TRANSFER] += lesson * 0.3 * np.maximum(features[:, 5], 0.0)
    return Rows(
        features=features,
        actual_s=(structured * np.exp(off)).astype(np.float32),
        structured_s=structured,
        time_s=1.8e9 + np.cumsum(rng.exponential(1.0, count)),
        split=split,
        key=np.arange(count).astype(np.uint64),
    )


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "STEPS", 600)
    monkeypatch.setattr(network, "MAX_EPOCHS", 30)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    with pytest.MonkeyPatch.context() as hurry:
        hurry.setattr(network, "STEPS", 2500)
        return fit(made(3000), seed=3)


def test_learns_what_there_is_to_learn(artifact: Artifact) -> None:
    manifest = artifact.manifest
    assert manifest.targets == ("ttft", "transfer")  # of ITL there is nothing to learn
    assert set(manifest.calibration) == {"ttft", "itl", "transfer"}
    ttft = manifest.metrics["ttft"]
    for kind in ("network", "forest"):
        assert ttft[f"{kind}_pinball"] < 0.75 * ttft["structured_pinball"]
    assert ttft["median_ape"] < 0.75 * ttft["structured_median_ape"]
    assert 0.85 < ttft["coverage_p90"] < 0.95
    assert manifest.metrics["itl"]["pinball"] == manifest.metrics["itl"]["structured_pinball"]
    assert sum(manifest.rows.values()) == 3000
    assert any("itl" in note and "offsets" in note for note in manifest.notes)
    assert any("queue is known of 0 + 0" in note for note in manifest.notes)


def test_what_it_says_is_what_it_decides_with(artifact: Artifact) -> None:
    """The exported model, on the newest rows: no others than those of the metrics."""
    newest = made(3000).of_time_split(fitting.SHARES)[2]
    learned = corrector(artifact).correct(np.ascontiguousarray(newest.features.T, np.float64))
    said = learned.quantiles(range(len(newest)))
    for target in ("ttft", "transfer"):
        place = TARGETS.index(target)
        known = learned.inside & np.isfinite(newest.targets[:, place])
        found = scores(newest.targets[known, place], said[place][:, known].astype(np.float32))
        expected = artifact.manifest.metrics[target]
        assert found["pinball"] == pytest.approx(expected["pinball"], rel=0.1)
        assert found["coverage_p90"] == pytest.approx(expected["coverage_p90"], abs=0.03)
    assert np.isnan(said[TARGETS.index("queue")]).all()


def test_the_same_rows_and_seed_give_the_same_version() -> None:
    rows = made(400)
    first, shuffled = fit(rows, seed=3), rows.take(np.random.default_rng(0).permutation(400))
    assert fit(shuffled, seed=3).version == first.version
    assert fit(rows, seed=4).version != first.version


def test_what_it_is_judged_by_is_later_than_all_that_it_says_it_saw_and_taught_it_nothing() -> None:
    rows = made(400)
    test = slice(340, None)
    other = replace(rows, actual_s=rows.actual_s.copy(), features=rows.features.copy())
    other.actual_s[test] *= 7.0
    other.features[test] += 1.0
    first, second = fit(rows), fit(other)
    assert first.manifest.rows["test"] == len(rows.time_s[test])
    assert first.manifest.window_from_s == rows.time_s[0]
    assert first.manifest.window_to_s == rows.time_s[339]  # those that it was calibrated on included
    assert (first.weights, first.manifest.calibration) == (second.weights, second.manifest.calibration)
    assert (first.manifest.low, first.manifest.high) == (second.manifest.low, second.manifest.high)
    assert first.manifest.metrics != second.manifest.metrics


def test_corrects_nothing_where_nothing_is_off() -> None:
    manifest = fit(made(400, lesson=0.0), seed=1).manifest
    assert manifest.kind == "structured"
    assert manifest.targets == ()
    for target in ("ttft", "itl"):
        modes = np.array(manifest.calibration[target])
        assert modes[:, 0] == pytest.approx(0.0, abs=0.05)
        assert (np.diff(modes, axis=1) > 0.0).all()
        assert manifest.metrics[target]["pinball"] == manifest.metrics[target]["structured_pinball"]


def test_of_more_rows_than_are_needed_some_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MOST_ROWS", 500)
    manifest = fit(made(1200), seed=1).manifest
    assert manifest.rows == {"train": 350, "calibrate": 75, "test": 75}
    assert "500 of 1200 rows" in manifest.notes[0]
    assert manifest.data_sha256 == made(1200).data_sha256


def test_too_few_rows_and_missing_packages_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FitError, match="20 requests to learn from: 100"):
        fit(made(20))
    assert fit(made(150)).manifest.kind == "structured"
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(FitError, match=r"torch: pip install 'kvferry\[train\]'"):
        fit(made(400))


def test_progress_goes_from_nothing_to_all() -> None:
    told: list[float] = []
    fit(made(400), progress=lambda done, total: told.append(done / total))
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)
    assert len(told) > 10


def test_the_exported_trees_are_those_that_were_grown() -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    rows = made(800)
    targets = rows.targets[:, [0, TRANSFER]]
    tensors = forest.fit(rows.features, targets, seed=0)
    zero, per_step = tensors["zero"][:, None], np.reciprocal(tensors["step"])[:, None]
    seen = codes(rows.features.T, zero, per_step).T
    assert len(np.unique(seen[:, 0])) > 100
    by_hand = HistGradientBoostingRegressor(
        loss="quantile", quantile=0.5, learning_rate=forest.LEARNING_RATE, max_iter=forest.TREES,
        max_depth=forest.DEPTH, max_leaf_nodes=8, min_samples_leaf=20, early_stopping=True,
        validation_fraction=0.15, n_iter_no_change=8, random_state=0,
    ).fit(seen, targets[:, 0])  # fmt: skip
    found = Forest.of(tensors, ("ttft", "transfer")).medians(rows.features.T.astype(np.float64))
    assert found[0] == pytest.approx(by_hand.predict(seen), abs=1e-4)


@pytest.mark.parametrize("kind", [network, forest])
def test_what_is_left_of_a_model_says_the_same(kind: Any) -> None:
    from kvferry.models.training.contest import KINDS

    rows = made(500)
    targets = rows.targets[:, [0, 1, TRANSFER]]
    name = kind.__name__.rsplit(".", 1)[1]
    tensors = kind.fit(rows.features, targets, seed=0)
    x = rows.features.T.astype(np.float64)
    whole = KINDS[name].model(tensors, ("ttft", "itl", "transfer")).quantiles(x)
    part = KINDS[name].model(kind.only(tensors, [0, 2]), ("ttft", "transfer")).quantiles(x)
    assert part == pytest.approx(whole[[0, 2]], abs=1e-5)


def test_a_forest_must_be_clearly_better() -> None:
    none = [1.0, 2.0]
    barely = {"structured": none, "network": [0.9, 1.8], "forest": [0.89, 1.78]}
    assert choose(barely) == ("network", [True, True])
    clearly = {"structured": none, "network": [0.9, 1.8], "forest": [0.7, 2.5]}
    assert choose(clearly) == ("forest", [True, False])
    neither = {"structured": none, "network": [1.0, 2.5], "forest": [1.3, 2.0]}
    assert choose(neither) == ("structured", [False, False])


@example(seed=400, count=399, shift=0.0)  # one mode alone is known well enough
@given(seed=st.integers(0, 1000), count=st.integers(20, 500), shift=st.floats(-2, 2))
def test_offsets_cover_what_they_were_made_of(seed: int, count: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    target = (rng.standard_t(3, count) + shift).astype(np.float32)
    target[rng.random(count) < 0.1] = np.nan
    split = rng.random(count) < 0.5
    predicted = np.sort(rng.normal(size=(3, count)), axis=0).astype(np.float32)
    modes = np.array(conformal.offsets(target, predicted, split), np.float32)
    known = np.isfinite(target)
    if known.sum() < conformal.MIN_IN_ALL:
        assert not modes.any()
        return
    covered = target <= predicted + modes[split.astype(int)].T + 1e-5
    of_modes = [known & (split == mode) for mode in (False, True)]
    made_of = [rows for rows in of_modes if rows.sum() >= conformal.MIN_OF_MODE]
    if not made_of:  # both have those of all; where one has its own, the other's are of all and cover all
        made_of = [known]
    for rows in made_of:
        assert covered[1, rows].mean() >= 0.9
        assert covered[2, rows].mean() >= 0.99


def test_each_mode_has_its_own_offsets_where_it_is_known_well() -> None:
    target = np.concatenate([np.zeros(300), np.ones(300)]).astype(np.float32)
    predicted, split = np.zeros((3, 600), np.float32), np.arange(600) >= 300
    assert conformal.offsets(target, predicted, split) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    few = slice(200, 400)
    both = conformal.offsets(target[few], predicted[:, few], split[few])
    assert both[0] == both[1]


def test_a_new_request_is_under_its_quantile_as_often_as_that_says() -> None:
    """On average over many calibrations: the promise of split conformal prediction."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        errors = rng.exponential(1.0, 51).astype(np.float32)
        modes = conformal.offsets(errors[:50], np.zeros((3, 50), np.float32), np.zeros(50, np.bool_))
        covered.append(errors[50] <= np.array(modes[0]))
    share = np.mean(covered, axis=0)
    assert 0.86 <= share[1] <= 0.96
    assert share[2] >= 0.95
