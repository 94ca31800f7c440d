"""What learning needs of some decision records, as columns; the same from every kind of source."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from kvferry.integrations.learning.needed import STAGES, STATUSES, Needed
from kvferry.integrations.log.record import DecisionRecord
from kvferry.policy.correction import QUANTILES, TARGETS
from kvferry.policy.features import FEATURE_SET, FEATURES

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
SIZE = 4096
# Where a record's features are from: nowhere, this kvferry's set, one with another name or length.
NO_SET, OUR_SET, OTHER_SET = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """N records. NaN: not measured, or not said.

    id_hash, time_s: of the record; split: its plan; acted: it was no shadow; status: position in STATUSES, -1
    without an outcome; rescued: another plan answered; retracted: decoding was interrupted. feature_set:
    NO_SET, OUR_SET or OTHER_SET; features: [N, F], anything where that is not OUR_SET. predicted_s:
    [N, 3, 7], QUANTILES of TARGETS, 0 where nothing was said; corrected: a learned model's. catalogue_s: the
    transfer with nothing learned of its link, 0 where nothing was said. stages_s: [N, 8] as in STAGES. Times
    in seconds.
    """

    id_hash: NDArray[np.uint64]
    time_s: Floats
    split: Bools
    acted: Bools
    status: NDArray[np.int8]
    rescued: Bools
    retracted: Bools
    feature_set: NDArray[np.int8]
    features: NDArray[np.float32]
    predicted_s: Floats
    corrected: Bools
    catalogue_s: Floats
    ttft_s: Floats
    itl_s: Floats
    e2e_s: Floats
    stages_s: Floats

    def __len__(self) -> int:
        return len(self.time_s)


def chunks_of(records: Iterable[Needed | DecisionRecord], size: int = SIZE) -> Iterator[Chunk]:
    """Some records after the other, never more than `size` of them in memory."""
    remaining = iter(records)
    while some := list(islice(remaining, size)):
        yield _chunk(some)


def hashes(ids: Iterable[str]) -> NDArray[np.uint64]:
    return np.array([xxhash.xxh3_64_intdigest(each.encode()) for each in ids], np.uint64)


def set_of(name: str, count: int) -> int:
    if not name or not count:
        return NO_SET
    return OUR_SET if name == FEATURE_SET and count == len(FEATURES) else OTHER_SET


def _chunk(records: Sequence[Needed | DecisionRecord]) -> Chunk:
    none = (math.nan,) * len(FEATURES)
    sets = [set_of(record.feature_set, len(record.features)) for record in records]
    shown = [r.features if known == OUR_SET else none for r, known in zip(records, sets, strict=True)]
    numbers = np.array([_numbers(record) for record in records], np.float64)
    ours = iter(np.split(numbers, np.cumsum(_WIDTHS)[:-1], axis=1))
    heads, said, stages = ours
    time_s, split, acted, status, rescued, retracted, corrected, catalogue_s, ttft_s, itl_s, e2e_s = heads.T
    with np.errstate(over="ignore"):  # what float32 cannot hold is dropped for not being finite
        features = np.array(shown, np.float64).astype(np.float32)
    return Chunk(
        id_hash=hashes(record.id for record in records),
        time_s=time_s,
        split=split > 0,
        acted=acted > 0,
        status=status.astype(np.int8),
        rescued=rescued > 0,
        retracted=retracted > 0,
        feature_set=np.array(sets, np.int8),
        features=features,
        predicted_s=said.reshape(len(records), len(TARGETS), len(QUANTILES)).transpose(0, 2, 1),
        corrected=corrected > 0,
        catalogue_s=catalogue_s,
        ttft_s=ttft_s,
        itl_s=itl_s,
        e2e_s=e2e_s,
        stages_s=stages,
    )


_WIDTHS = (11, len(TARGETS) * len(QUANTILES), len(STAGES))
_NOTHING = (math.nan,) * len(STAGES)


def _numbers(record: Needed | DecisionRecord) -> list[float]:
    outcome, plan = record.outcome, record.chosen.plan
    row: list[Any] = [
        record.time,
        record.chosen.mode == "split",
        record.mode != "shadow",
        -1 if outcome is None else STATUSES.index(outcome.status),
        outcome is not None and (bool(outcome.rescued_from) or outcome.served_by not in ("", plan)),
        outcome is not None and bool(outcome.retractions),
        record.model_version != "structured" and not record.fallback,
        record.catalogue_transfer_s,
    ]
    if outcome is None:
        row += (None, None, None)
    else:
        row += (outcome.ttft_s, outcome.itl_s, outcome.e2e_s)
    for name in _SAID:
        term = getattr(record.terms, name)
        row += (term.p50, term.p90, term.p99)
    if outcome is None:
        row += _NOTHING
    else:
        stages = outcome.stages
        row += [getattr(stages, name) for name in STAGES]
    return [math.nan if value is None else value for value in row]


_SAID = tuple(f"{name}_s" for name in TARGETS)
