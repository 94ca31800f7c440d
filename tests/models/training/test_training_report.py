"""Scores, and the baselines that a model is held against."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.training.baselines import WINDOW, catalogue, linear_fit, moving_average
from kvferry.models.training.contenders import learned, live, structured
from kvferry.models.training.report import Score, best, score, scores
from kvferry.models.training.rows import Rows
from kvferry.policy.candidates import Floats
from kvferry.policy.correction import QUANTILES, TARGETS, Correction
from kvferry.policy.features import FEATURES

TTFT, ITL, QUEUE, PREFILL, TRANSFER, REPACK, ADMISSION = range(7)


def made(count: int, seed: int = 0) -> Rows:
    """Prefill of 10 us a token and 10 ms, transfer of 1 ns a byte and 2 ms, both for every row."""
    rng = np.random.default_rng(seed)
    tokens, moved = rng.integers(10, 5000, count), rng.integers(10**5, 10**8, count)
    features = np.zeros((count, len(FEATURES)), np.float32)
    features[:, FEATURES.index("log_new_tokens")] = np.log1p(tokens)
    features[:, FEATURES.index("log_moved_bytes")] = np.log1p(moved)
    actual = np.full((count, len(TARGETS)), np.nan, np.float32)
    actual[:, PREFILL] = 0.01 + 1e-5 * tokens
    actual[:, TRANSFER] = 0.002 + 1e-9 * moved
    actual[:, TTFT] = actual[:, PREFILL] + actual[:, TRANSFER]
    said = np.repeat(0.5 * actual[:, None], len(QUANTILES), axis=1) * np.array([1, 2, 3], np.float32)[:, None]
    return Rows(
        features=features,
        actual_s=actual,
        structured_s=0.5 * actual,
        time_s=np.arange(count, dtype=np.float64),
        split=np.ones(count, np.bool_),
        key=np.arange(count, dtype=np.uint64),
        predicted_s=said.astype(np.float32),
        corrected=np.zeros(count, np.bool_),
    )


def test_a_score_is_the_median_and_mean_error_and_what_was_covered() -> None:
    actual = np.array([1.0, 2.0, 4.0, np.nan], np.float32)
    said = np.array([[1.0, 2.0, np.nan], [1.0, 1.5, np.nan], [3.0, 5.0, np.nan], [1, 1, 1]], np.float32)
    assert score(actual, said) == Score(0.25, pytest.approx(2 / 3), 1 / 3, 2 / 3, None, 3)
    assert score(actual, np.full((4, 3), np.nan, np.float32)) == Score()


def test_a_term_that_takes_no_time_has_no_infinite_error() -> None:
    assert score(np.zeros(2, np.float32), np.full((2, 3), 1e-5, np.float32)).mdape == pytest.approx(0.1)


@given(st.lists(st.floats(1e-5, 1e3), min_size=1, max_size=50), st.floats(0.1, 10.0))
def test_a_prediction_that_is_always_off_by_a_factor_has_that_error(
    values: list[float], factor: float
) -> None:
    actual = np.array(values, np.float32)
    said = np.repeat(actual[:, None] * np.float32(factor), 3, axis=1)
    found = score(actual, said)
    if min(values) > 1e-4:
        assert found.mdape == pytest.approx(abs(factor - 1), rel=1e-3, abs=1e-5)
    rounding = 1e-5 + 1e-6 * float(actual.max())  # columns are float32
    assert found.mae_s == pytest.approx(abs(factor - 1) * actual.mean(), rel=1e-3, abs=rounding)
    assert found.coverage_p50 == float((said[:, 0] >= actual).mean())


def test_one_line_finds_a_line() -> None:
    earlier, later = made(300, 1), made(100, 2)
    found = scores(later.actual_s, linear_fit(earlier, later))
    for name in ("ttft", "prefill", "transfer"):
        assert found[name].mdape == pytest.approx(0.0, abs=1e-3)
    assert found["itl"].n == 0


def test_a_moving_average_sees_only_what_came_before() -> None:
    earlier, later = made(300), made(200, 3)
    said = moving_average(earlier, later)[:, 0, PREFILL]
    both = np.concatenate([earlier.actual_s, later.actual_s])[:, PREFILL].astype(np.float64)
    for row in (0, 57, 199):
        at = len(earlier) + row
        assert said[row] == pytest.approx(both[at - WINDOW : at].mean(), rel=1e-5)


def test_a_moving_average_passes_over_what_is_not_known() -> None:
    earlier, later = made(3), made(2, 5)
    earlier.actual_s[1] = np.nan
    said = moving_average(earlier, later)[:, 0, PREFILL]
    assert said[0] == pytest.approx(earlier.actual_s[[0, 2], PREFILL].mean(), rel=1e-5)
    assert np.isnan(moving_average(earlier, later)[:, 0, ITL]).all()


def test_baselines_spreads_come_from_the_earlier_part() -> None:
    earlier, later = made(3000, 1), made(1000, 2)
    earlier.actual_s[:] *= np.exp(np.random.default_rng(0).normal(0, 0.3, (3000, 1))).astype(np.float32)
    later.actual_s[:] *= np.exp(np.random.default_rng(1).normal(0, 0.3, (1000, 1))).astype(np.float32)
    found = scores(later.actual_s, linear_fit(earlier, later))["prefill"]
    assert found.coverage_p90 == pytest.approx(0.9, abs=0.03)
    assert found.coverage_p99 == pytest.approx(0.99, abs=0.01)


def test_the_catalogue_does_without_what_links_had_shown() -> None:
    rows = made(5)
    rows.features[:, FEATURES.index("log_slowness")] = np.log(4.0)
    said = catalogue(rows)
    assert said[:, 0, TRANSFER] == pytest.approx(rows.structured_s[:, TRANSFER] / 4.0)
    assert said[:, 0, TTFT] == pytest.approx(rows.structured_s[:, PREFILL] + said[:, 0, TRANSFER])
    assert np.isnan(said[:, 1:]).all()


def test_what_the_catalogue_itself_said_is_taken_where_a_log_has_it() -> None:
    rows = made(3)
    rows.features[:, FEATURES.index("log_slowness")] = np.log(4.0)
    guessed = catalogue(rows)[:, 0]
    told = np.array([0.3, np.nan, 0.5], np.float32)
    said = catalogue(dataclasses.replace(rows, catalogue_s=told))[:, 0]
    assert said[:, TRANSFER] == pytest.approx([0.3, guessed[1, TRANSFER], 0.5])
    assert said[:, TTFT] == pytest.approx(rows.structured_s[:, PREFILL] + said[:, TRANSFER])
    later = dataclasses.replace(rows, structured_s=9 * rows.structured_s, catalogue_s=told)
    assert catalogue(later)[[0, 2], 0, TRANSFER] == pytest.approx([0.3, 0.5])  # whatever was learned


def test_the_best_baseline_is_the_one_with_the_smallest_error() -> None:
    some = {"a": {"ttft": Score(0.4)}, "b": {"ttft": Score(0.2)}, "c": {"ttft": Score()}}
    assert best(some, "ttft") == ("b", 0.2)
    assert best({"c": some["c"]}, "ttft") is None


@dataclasses.dataclass(frozen=True)
class Doubling:
    """Says that all takes twice as long, of what it has seen; knows nothing of transfer."""

    version: str = "m-000000000000"

    def correct(self, features: Floats) -> Correction:
        inside = features[FEATURES.index("split")] < 0.5
        logs = np.log(np.array([2.0, 4.0, 8.0]))[None, :, None] * np.ones((len(TARGETS), 1, 1))
        logs[TRANSFER] = np.nan
        return Correction(
            ttft=np.full(features.shape[1], np.log(2.0)),
            itl=np.full(features.shape[1], np.log(2.0)),
            inside=inside,
            all_inside=bool(inside.all()),
            quantiles=lambda rows: np.repeat(logs, len(rows), axis=2),
            why_not=lambda row: "split",
        )


def test_a_learned_model_is_judged_as_decisions_use_it() -> None:
    rows = made(6)
    rows.features[:2, FEATURES.index("split")] = 1.0
    said, inside = learned(rows, Doubling())
    before = structured(rows)
    assert inside == pytest.approx(4 / 6)
    assert np.array_equal(said[:2], before[:2], equal_nan=True)
    assert np.array_equal(said[:, :, TRANSFER], before[:, :, TRANSFER])
    assert said[2, :, TTFT] == pytest.approx(rows.structured_s[2, TTFT] * np.array([2.0, 4.0, 8.0]))
    assert said[2:, 0, TTFT] == pytest.approx(2.0 * rows.structured_s[2:, TTFT])
    expected = (rows.structured_s[2:, PREFILL] + 1e-4) * 2.0 - 1e-4
    assert said[2:, 0, PREFILL] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("apart_s", "low", "high"), [(1.0, 0.88, 0.92), (0.0, 0.97, 1.0)])
def test_percentiles_of_ttft_follow_what_had_happened_by_then(
    apart_s: float, low: float, high: float
) -> None:
    rows = made(3000)
    noise = np.random.default_rng(4).lognormal(0.0, 0.3, 3000)
    actual = rows.actual_s.copy()
    actual[:, TTFT] = 2.0 * rows.structured_s[:, TTFT] * noise  # of which 98.9% are under twice the median
    rows = dataclasses.replace(rows, actual_s=actual, time_s=apart_s * rows.time_s)
    said, _ = learned(rows, Doubling())
    covered = actual[:, TTFT] <= said[:, 1, TTFT]
    assert low <= covered.mean() <= high
    assert (said[:, 0, TTFT] <= said[:, 1, TTFT]).all()
    assert (said[:, 1, TTFT] <= said[:, 2, TTFT]).all()


def test_structured_spreads_are_only_those_that_nobody_corrected() -> None:
    rows = dataclasses.replace(made(2), corrected=np.array([False, True]))
    said = structured(rows)
    assert np.array_equal(said[:, 0], rows.structured_s, equal_nan=True)
    assert np.isfinite(said[0, 1, TTFT])
    assert np.isnan(said[1, 1:]).all()
    assert np.array_equal(live(rows), rows.predicted_s, equal_nan=True)
    assert np.isnan(live(dataclasses.replace(rows, predicted_s=None))).all()
