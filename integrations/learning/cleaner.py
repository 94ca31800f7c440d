"""Records that something can be learned from, and a count of the others by reason."""

from collections.abc import Iterator

import numpy as np

from kvferry.integrations.learning.actuals import actuals
from kvferry.integrations.learning.chunk import NO_SET, OUR_SET, Bools, Chunk, Floats
from kvferry.integrations.learning.needed import STATUSES
from kvferry.integrations.learning.tally import Tally
from kvferry.integrations.log.record import NEVER_S
from kvferry.models.training.rows import Rows
from kvferry.policy.correction import TARGETS
from kvferry.policy.features import EPSILON_S, FEATURES

LONGEST_S = 86_400.0
LATEST_S = 4_102_444_800.0  # 2100: where milliseconds are taken for seconds
_MIX = np.uint64(0x9E3779B97F4A7C15)


def cleaned(chunk: Chunk, tally: Tally) -> Rows:
    """The rows of a chunk, in its order. A record is dropped for the first reason that applies to it."""
    left = np.ones(len(chunk), np.bool_)
    for reason, applies in _reasons(chunk):
        now = left & applies
        tally.dropped[reason] += int(now.sum())
        left &= ~applies
    tally.read += len(chunk)
    tally.kept += int(left.sum())
    actual_s, doubted = actuals(chunk)
    tally.doubted.update({reason: int((found & left).sum()) for reason, found in doubted.items()})
    with np.errstate(over="ignore", invalid="ignore"):
        structured_s = _structured(chunk)
        said = np.where(_unsaid(chunk.predicted_s), np.nan, chunk.predicted_s)
        told = (chunk.catalogue_s > 0.0) & (chunk.catalogue_s < NEVER_S)
        catalogue_s = np.where(told, chunk.catalogue_s, np.nan)
        microseconds = np.rint(np.nan_to_num(chunk.time_s) * 1e6).astype(np.int64).astype(np.uint64)
    return Rows(
        features=chunk.features[left],
        actual_s=actual_s[left].astype(np.float32),
        structured_s=structured_s[left].astype(np.float32),
        time_s=chunk.time_s[left],
        split=chunk.split[left],
        # the same id at another time is another request
        key=(chunk.id_hash ^ (microseconds * _MIX))[left],
        predicted_s=said[left].astype(np.float32),
        corrected=chunk.corrected[left],
        catalogue_s=catalogue_s[left].astype(np.float32),
    )


def _reasons(chunk: Chunk) -> Iterator[tuple[str, Bools]]:
    """Each reason, and the records it applies to, also such as an earlier one has dropped."""
    yield "shadow", ~chunk.acted
    yield "no_outcome", chunk.status < 0
    for code, status in enumerate(STATUSES):
        if status != "ok":
            yield status, chunk.status == code
    yield "rescued", chunk.rescued
    yield "no_features", chunk.feature_set == NO_SET
    yield "other_feature_set", chunk.feature_set != OUR_SET
    yield "features_not_finite", np.asarray(~np.isfinite(chunk.features).all(axis=1))
    with np.errstate(over="ignore", invalid="ignore"):
        known = _structured(chunk)
        never = (known >= NEVER_S) & (np.array(TARGETS) != "repack")
    yield "never", np.asarray(never.any(axis=1))
    yield "ttft_missing", np.isnan(chunk.ttft_s)
    yield "clocks", _impossible(chunk)


def _impossible(chunk: Chunk) -> Bools:
    """Times that no clock could have told."""
    with np.errstate(invalid="ignore"):
        return np.asarray(
            ~np.isfinite(chunk.time_s)
            | (chunk.time_s <= 0.0)
            | (chunk.time_s >= LATEST_S)
            | (chunk.ttft_s <= 0.0)
            | (chunk.ttft_s > LONGEST_S)
            | (chunk.itl_s < 0.0)
            | (chunk.itl_s > LONGEST_S)
            | (chunk.e2e_s + EPSILON_S < chunk.ttft_s)
        )


def _structured(chunk: Chunk) -> Floats:
    """[N, 7]: structured medians, out of the features, which no learned model has touched.

    Repack has no feature: it is what was predicted, where no learned model corrected that.
    """
    shown = dict(zip(FEATURES, chunk.features.T.astype(np.float64), strict=True))
    seconds = {
        name: np.maximum(np.exp(shown[f"log_{name}_s"]) - EPSILON_S, 0.0)
        for name in TARGETS
        if name != "repack"
    }
    said = chunk.predicted_s[:, 0, TARGETS.index("repack")]
    seconds["repack"] = np.where(chunk.corrected | ~(said < NEVER_S), np.nan, said)
    return np.column_stack([seconds[name] for name in TARGETS])


def _unsaid(predicted_s: Floats) -> Bools:
    """[N, 3, 7]: nothing was predicted, or no 99th percentile, or that it never ends."""
    unsaid = ~(predicted_s < NEVER_S) | (predicted_s < 0.0)
    unsaid[:, 2] |= predicted_s[:, 2] <= 0.0
    unsaid |= predicted_s[:, :1, :1] <= 0.0
    return unsaid
