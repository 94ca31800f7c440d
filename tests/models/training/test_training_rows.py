"""Rows as columns: their order, their parts, their hash."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.training.rows import Rows
from kvferry.policy.correction import QUANTILES, TARGETS
from kvferry.policy.features import FEATURES


def drawn(count: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    wide, quantiles = len(TARGETS), len(QUANTILES)
    actual = rng.random((count, wide), np.float32)
    actual[rng.random((count, wide)) < 0.3] = np.nan
    return Rows(
        features=rng.random((count, len(FEATURES)), np.float32),
        actual_s=actual,
        structured_s=rng.random((count, wide), np.float32),
        time_s=rng.integers(1, 50, count).astype(np.float64),
        split=rng.random(count) < 0.5,
        key=rng.integers(0, 2**63, count).astype(np.uint64),
        predicted_s=rng.random((count, quantiles, wide), np.float32),
        corrected=rng.random(count) < 0.5,
        catalogue_s=rng.random(count, np.float32),
    )


@given(st.integers(0, 200), st.integers(1, 199), st.integers(0, 5))
def test_the_hash_does_not_depend_on_how_rows_came_together(count: int, cut: int, seed: int) -> None:
    rows = drawn(count, seed)
    cut = min(cut, count)
    joined = Rows.concat([rows.take(slice(0, cut)), rows.take(slice(cut, None))])
    assert joined.data_sha256 == rows.data_sha256
    assert len(joined) == count


@pytest.mark.parametrize("name", ["features", "actual_s", "structured_s", "time_s", "key"])
def test_the_hash_sees_every_column(name: str) -> None:
    rows = drawn(10)
    column = getattr(rows, name).copy()
    column[7] = 3
    assert dataclasses.replace(rows, **{name: column}).data_sha256 != rows.data_sha256


def test_the_hash_takes_every_nan_and_every_zero_for_the_same() -> None:
    rows = drawn(3)
    one, other = rows.actual_s.copy(), rows.actual_s.copy()
    one[0, 0], other[0, 0] = np.nan, -np.float32(np.nan)
    one[1, 1], other[1, 1] = 0.0, -0.0
    assert one.tobytes() != other.tobytes()
    hashes = {dataclasses.replace(rows, actual_s=each).data_sha256 for each in (one, other)}
    assert len(hashes) == 1


@given(st.integers(0, 100), st.integers(0, 5))
def test_parts_follow_each_other_in_time_and_are_all_there(count: int, seed: int) -> None:
    rows = drawn(count, seed)
    parts = rows.of_time_split((0.6, 0.2, 0.2))
    assert sum(map(len, parts)) == count
    assert abs(len(parts[0]) - 0.6 * count) <= 1
    together = Rows.concat(parts)
    assert (np.diff(together.time_s) >= 0).all()
    assert sorted(together.key.tolist()) == sorted(rows.key.tolist())
    again = rows.take(np.random.default_rng(seed).permutation(count)).of_time_split((0.6, 0.2, 0.2))
    assert [part.data_sha256 for part in again] == [part.data_sha256 for part in parts]


def test_columns_that_do_not_belong_together_are_refused() -> None:
    rows = drawn(4)
    with pytest.raises(ValueError, match="split has shape"):
        dataclasses.replace(rows, split=rows.split[:3])
    with pytest.raises(ValueError, match="2 feature sets"):
        Rows.concat([rows, dataclasses.replace(rows, feature_set="v0")])


def test_what_was_not_read_is_unknown() -> None:
    lean = dataclasses.replace(drawn(4), predicted_s=None, corrected=None)
    assert np.isnan(lean.predicted_p90).all()
    assert len(lean.take(np.array([True, False, True, False]))) == 2
    assert Rows.concat([lean, drawn(2)]).predicted_s is None
    assert len(Rows.concat([Rows.empty(), drawn(2)])) == 2
