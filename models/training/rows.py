"""What a model is trained and judged on: a row per request that was predicted, served so, and told of."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvferry.policy.correction import QUANTILES, TARGETS
from kvferry.policy.features import EPSILON_S, FEATURE_SET, FEATURES

F32 = NDArray[np.float32]
SHARES = (0.6, 0.2, 0.2)
# Hashed in pieces, so that no copy of a large column is made at once.
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Requests as columns; N rows, NaN where nobody measured or said something.

    features: [N, F], rows of `policy.features.FEATURES`. actual_s: [N, 7], what was measured of TARGETS, and
    structured_s: [N, 7], the structured medians of the same, in seconds. time_s: [N], Unix seconds of the
    decision. split: [N], whether the plan was a split one. key: [N], which request it was (a hash).
    predicted_s: [N, 3, 7], what the version that decided said at QUANTILES, and corrected: [N], whether that
    was a learned model's correction; catalogue_s: [N], the transfer with nothing learned of its link. None
    where they were not read.
    Raises ValueError on shapes that do not belong together.
    """

    features: F32
    actual_s: F32
    structured_s: F32
    time_s: NDArray[np.float64]
    split: NDArray[np.bool_]
    key: NDArray[np.uint64]
    predicted_s: F32 | None = None
    corrected: NDArray[np.bool_] | None = None
    catalogue_s: F32 | None = None
    feature_set: str = FEATURE_SET

    def __post_init__(self) -> None:
        rows = len(self.time_s)
        shapes = {
            "features": (rows, len(FEATURES)),
            "actual_s": (rows, len(TARGETS)),
            "structured_s": (rows, len(TARGETS)),
            "time_s": (rows,),
            "split": (rows,),
            "key": (rows,),
            "predicted_s": (rows, len(QUANTILES), len(TARGETS)),
            "corrected": (rows,),
            "catalogue_s": (rows,),
        }
        for name, shape in shapes.items():
            column = getattr(self, name)
            if column is not None and column.shape != shape:
                raise ValueError(f"{name} has shape {column.shape}, expected {shape}")

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def targets(self) -> F32:
        """[N, 7], newly made: ln(actual_s + EPSILON_S) - ln(structured_s + EPSILON_S); NaN: unknown."""
        return logs(self.actual_s) - logs(self.structured_s)

    @property
    def predicted_p50(self) -> F32:
        """[N, 7]: what the version that decided said; NaN where it, or nobody, said anything."""
        return self._predicted(0)

    @property
    def predicted_p90(self) -> F32:
        return self._predicted(1)

    @property
    def predicted_p99(self) -> F32:
        return self._predicted(2)

    @property
    def window_s(self) -> tuple[float, float]:
        """Unix seconds of the first and of the last decision; (0, 0) without rows."""
        return (float(self.time_s.min()), float(self.time_s.max())) if len(self) else (0.0, 0.0)

    def take(self, which: NDArray[Any] | slice) -> Self:
        """The rows of a mask, of positions or of a slice (then without a copy)."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays: dict[str, Any] = {
            name: value[which] for name, value in columns.items() if isinstance(value, np.ndarray)
        }
        return replace(self, **arrays)

    def in_time_order(self) -> Self:
        """Oldest first; of the same time, by key. Itself where that is so already."""
        steps = np.diff(self.time_s)
        if bool((steps > 0.0).all()):
            return self
        order = np.lexsort((self.key, self.time_s))
        return self if bool((np.diff(order) == 1).all()) else self.take(order)

    def of_time_split(self, shares: Sequence[float] = SHARES) -> tuple[Self, ...]:
        """Parts that follow each other in time, of about these shares of the rows; the last has the rest."""
        ordered = self.in_time_order()
        ends = np.rint(np.cumsum(shares)[:-1] * len(self)).astype(int).tolist()
        bounds = (0, *ends, len(self))
        return tuple(ordered.take(slice(start, end)) for start, end in itertools.pairwise(bounds))

    @property
    def data_sha256(self) -> str:
        """Of all that a model learns from, in this order of the rows; however they came together."""
        digest = hashlib.sha256(f"{self.feature_set} {len(self)}".encode())
        for column in (self.features, self.actual_s, self.structured_s, self.time_s, self.split, self.key):
            for start in range(0, len(self), _PIECE):
                piece: NDArray[Any] = np.ascontiguousarray(column[start : start + _PIECE])
                if piece.dtype.kind == "f":
                    piece = piece + 0.0  # no -0.0, and one of the many NaNs
                    piece[np.isnan(piece)] = np.nan
                digest.update(piece.astype(piece.dtype.newbyteorder("<"), copy=False).tobytes())
        return digest.hexdigest()

    def _predicted(self, quantile: int) -> F32:
        if self.predicted_s is None:
            return np.full(self.actual_s.shape, np.nan, np.float32)
        return self.predicted_s[:, quantile]

    @classmethod
    def concat(cls, parts: Sequence["Rows"]) -> Self:
        """All rows, in the order of the parts. Raises ValueError on none, or on several feature sets."""
        sets = {part.feature_set for part in parts}
        if len(sets) != 1:
            raise ValueError(f"cannot join rows of {len(sets)} feature sets")
        names = [
            field.name
            for field in fields(cls)
            if field.name != "feature_set" and all(getattr(part, field.name) is not None for part in parts)
        ]
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return cls(**columns, feature_set=sets.pop())

    @classmethod
    def empty(cls) -> Self:
        """No rows, with every column."""
        wide, quantiles = len(TARGETS), len(QUANTILES)
        return cls(
            features=np.empty((0, len(FEATURES)), np.float32),
            actual_s=np.empty((0, wide), np.float32),
            structured_s=np.empty((0, wide), np.float32),
            time_s=np.empty(0),
            split=np.empty(0, np.bool_),
            key=np.empty(0, np.uint64),
            predicted_s=np.empty((0, quantiles, wide), np.float32),
            corrected=np.empty(0, np.bool_),
            catalogue_s=np.empty(0, np.float32),
        )


def logs(seconds: F32) -> F32:
    """ln(s + EPSILON_S), as features and targets have it."""
    found: F32 = np.log(seconds + np.float32(EPSILON_S))
    return found
