"""What a model is judged on, and what is said where that is not held out."""

import dataclasses

import msgspec
import numpy as np
import pytest
from learnedrecords import decided

from kvferry.integrations.learning.chunk import chunks_of
from kvferry.integrations.learning.cleaner import cleaned
from kvferry.integrations.learning.evaluation import MIN_ROWS, TooFewError, evaluate, hold_out
from kvferry.integrations.learning.tally import Tally
from kvferry.models.residual.artifact import Artifact
from kvferry.models.residual.manifest import SCHEMA, Manifest
from kvferry.models.training.rows import Rows
from kvferry.policy.correction import TARGETS
from kvferry.policy.features import FEATURE_SET, FEATURES

FACTOR = 1.4


def rows_of(count: int) -> Rows:
    (chunk,) = chunks_of(decided(n) for n in range(count))
    return cleaned(chunk, Tally())


def doubling(rows: Rows, until: int) -> Artifact:
    """A model that takes all times by FACTOR, made from the first `until` rows."""
    off = float(np.log(FACTOR))
    return Artifact.pack(
        Manifest(
            schema=SCHEMA,
            version="",
            kind="structured",
            created_s=0.0,
            feature_set=FEATURE_SET,
            features=FEATURES,
            low=tuple(rows.features.min(axis=0).tolist()),
            high=tuple(rows.features.max(axis=0).tolist()),
            targets=(),
            window_from_s=float(rows.time_s[0]),
            window_to_s=float(rows.time_s[until - 1]),
            rows={},
            data_sha256="",
            weights_sha256="",
            metrics={},
            calibration={name: ((off, off + 0.2, off + 0.5),) * 2 for name in TARGETS},
            seed=0,
            kvferry="0",
        ),
        {},
    )


def test_a_model_is_judged_on_what_came_after_its_window_only() -> None:
    rows = rows_of(200)
    held = hold_out(rows, doubling(rows, 150))
    assert held.later.time_s.tolist() == rows.time_s[150:].tolist()
    assert held.earlier.time_s.tolist() == rows.time_s[:150].tolist()
    assert not held.in_sample


def test_a_log_that_the_model_has_seen_is_said_to_be_no_test() -> None:
    rows = rows_of(100)
    for until in (100, 100 - MIN_ROWS + 1):
        found = evaluate(rows, doubling(rows, until))
        assert found.held_out.in_sample
        assert found.told()["in_sample"] is True
        assert found.told()["held_out"].startswith("NOT held out")


def test_a_log_that_begins_after_the_training_teaches_baselines_by_its_own_beginning() -> None:
    rows = rows_of(200)
    model = doubling(rows, 50)
    held = hold_out(rows.take(slice(50, None)), model)
    assert not held.in_sample
    assert (len(held.earlier), len(held.later)) == (90, 60)


def test_without_a_model_the_live_version_is_judged_on_the_later_part() -> None:
    found = evaluate(rows_of(100))
    assert (len(found.held_out.later), found.version, found.model, found.inside) == (40, "live", None, None)
    assert found.judged is found.live
    assert found.live["prefill"].mdape == pytest.approx(1 / 3, abs=0.03)  # it takes 1.5 times as long


def test_a_model_that_knows_better_has_the_smaller_error_and_says_by_how_much() -> None:
    rows = rows_of(300)
    found = evaluate(rows, doubling(rows, 200))
    told = found.told()
    assert told["terms"]["prefill"]["mdape"] < 0.1 < told["live"]["prefill"]["mdape"]
    assert told["live"]["prefill"]["mdape"] == pytest.approx(told["structured"]["prefill"]["mdape"], rel=1e-4)
    gain = told["gains"]["prefill"]
    other = told["baselines"][gain["baseline"]]["prefill"]["mdape"]
    assert gain["gain"] == pytest.approx(1 - told["terms"]["prefill"]["mdape"] / other)
    assert other == min(each["prefill"]["mdape"] or 9.0 for each in told["baselines"].values())
    assert told["terms"]["transfer"]["n"] == 50
    assert told["terms"]["repack"]["n"] == 0
    assert msgspec.json.encode(told)


def test_requests_unlike_the_training_get_the_structured_prediction() -> None:
    rows = rows_of(200)
    far = rows.features.copy()
    far[150:, FEATURES.index("pre_arrivals_per_s")] = 1e4
    found = evaluate(dataclasses.replace(rows, features=far), doubling(rows, 100))
    assert found.inside == pytest.approx(0.5)


def test_too_few_requests_are_refused() -> None:
    with pytest.raises(TooFewError, match=f"only {MIN_ROWS - 1} requests"):
        evaluate(rows_of(MIN_ROWS - 1))
