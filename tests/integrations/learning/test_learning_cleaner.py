"""Which records are learned from, and what is said of the others."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learnedrecords import decided, ended

from kvferry.integrations.learning.chunk import chunks_of
from kvferry.integrations.learning.cleaner import cleaned
from kvferry.integrations.learning.collector import Collector
from kvferry.integrations.learning.tables import REASONS, tally_lines
from kvferry.integrations.learning.tally import Tally
from kvferry.integrations.log.record import NEVER_S, DecisionRecord, Term
from kvferry.models.training.rows import Rows
from kvferry.policy.correction import TARGETS
from kvferry.policy.features import FEATURES

replace = msgspec.structs.replace
GOOD = decided(1)
CORRECTED = replace(GOOD, model_version="m-0123456789ab")


def feature(name: str, value: float) -> tuple[float, ...]:
    return tuple(value if name == each else old for each, old in zip(FEATURES, GOOD.features, strict=True))


def clean(*records: DecisionRecord, size: int = 4096) -> tuple[Rows, Tally]:
    tally = Tally()
    rows = Collector(tally)
    for chunk in chunks_of(records, size):
        rows.add(cleaned(chunk, tally))
    return rows.rows(), tally


BAD = {
    "shadow": replace(GOOD, mode="shadow"),
    "no_outcome": replace(GOOD, outcome=None),
    "failed": ended(GOOD, status="failed"),
    "cancelled": ended(GOOD, status="cancelled"),
    "rejected": ended(GOOD, status="rejected"),
    "rescued": ended(GOOD, rescued_from=("split:a>b@nixl",)),
    "no_features": replace(GOOD, features=(), feature_set=""),
    "other_feature_set": replace(GOOD, feature_set="v0"),
    "features_not_finite": replace(GOOD, features=feature("chunks", 1e300)),
    "never": replace(GOOD, features=feature("log_queue_s", math.log(NEVER_S))),
    "ttft_missing": ended(GOOD, ttft_s=None),
    "clocks": ended(GOOD, ttft_s=-0.5),
}


@pytest.mark.parametrize("reason", BAD)
def test_each_kind_of_useless_record_is_dropped_and_counted_as_such(reason: str) -> None:
    rows, tally = clean(GOOD, BAD[reason])
    assert len(rows) == 1
    assert (tally.read, tally.kept) == (2, 1)
    assert {name: count for name, count in tally.dropped.items() if count} == {reason: 1}
    assert REASONS[reason] in "\n".join(tally_lines(tally))


@pytest.mark.parametrize(
    "record",
    [
        ended(GOOD, served_by="colocated:http://c"),
        replace(GOOD, time=0.0),
        replace(GOOD, features=GOOD.features[:-1]),
        ended(GOOD, ttft_s=0.0),
        ended(GOOD, itl_s=-1.0),
        ended(GOOD, e2e_s=GOOD.outcome.ttft_s / 2),
        ended(GOOD, ttft_s=1e7, e2e_s=2e7),
        ended(GOOD, itl_s=1e200),
        replace(GOOD, time=1000.0 * GOOD.time),
    ],
)
def test_other_ways_of_being_useless(record: DecisionRecord) -> None:
    assert len(clean(record)[0]) == 0


def test_a_request_is_one_however_its_copies_stand_among_others_of_the_same_moment() -> None:
    moment = [replace(decided(n), time=GOOD.time) for n in range(4)]
    rows, tally = clean(*moment, *reversed(moment), *moment)
    assert len(rows) == len(set(rows.key.tolist())) == 4
    assert tally.dropped["duplicate"] == 8
    again, _ = clean(*reversed(moment))
    np.testing.assert_array_equal(rows.key, again.key)


def test_a_record_is_counted_for_one_reason_only() -> None:
    _, tally = clean(replace(BAD["failed"], mode="shadow", features=()))
    assert tally.dropped.total() == 1
    assert tally.dropped["shadow"] == 1


def test_the_same_request_twice_is_learned_from_once_but_a_reused_id_is_another_request() -> None:
    rows, tally = clean(GOOD, GOOD, replace(GOOD, time=GOOD.time + 1.0), size=1)
    assert len(rows) == 2
    assert tally.dropped["duplicate"] == 1
    assert tally.kept == 2


def test_structured_predictions_are_known_whatever_a_model_had_made_of_them() -> None:
    terms = msgspec.structs.replace(GOOD.terms, ttft_s=Term(9.0, 10.0, 11.0), transfer_s=Term(8.0, 9.0, 10.0))
    rows, _ = clean(GOOD, replace(CORRECTED, time=GOOD.time + 1, terms=terms))
    assert rows.corrected is not None
    assert rows.corrected.tolist() == [False, True]
    for name in TARGETS[:-1]:
        place = TARGETS.index(name)
        expected = getattr(GOOD.terms, f"{name}_s").p50
        if name != "repack":
            assert rows.structured_s[:, place] == pytest.approx([expected] * 2, rel=1e-4, abs=1e-8)
    assert np.isnan(rows.structured_s[:, TARGETS.index("repack")]).tolist() == [False, True]
    assert rows.predicted_p50[:, 0] == pytest.approx([GOOD.terms.ttft_s.p50, 9.0])


def test_a_quantile_that_nobody_said_is_unknown() -> None:
    rows, _ = clean(GOOD)
    assert rows.predicted_p90[0, 0] == pytest.approx(GOOD.terms.ttft_s.p90)
    assert np.isnan(rows.predicted_p99).all()


def test_what_the_catalogue_said_is_known_of_splits_that_a_record_tells_it_of() -> None:
    told = [GOOD, decided(2), *(replace(decided(n), catalogue_transfer_s=0.0) for n in (3, 5))]
    rows, _ = clean(*told, replace(decided(7), catalogue_transfer_s=NEVER_S))
    assert rows.catalogue_s is not None
    assert rows.catalogue_s.dtype == np.float32
    assert rows.catalogue_s[0] == pytest.approx(GOOD.catalogue_transfer_s)
    assert np.isnan(rows.catalogue_s[1:]).all()


def test_targets_are_by_how_much_predictions_were_off() -> None:
    rows, _ = clean(GOOD)
    place = TARGETS.index("transfer")
    off = math.log(GOOD.outcome.stages.transfer_s + 1e-4) - math.log(GOOD.terms.transfer_s.p50 + 1e-4)
    assert rows.targets[0, place] == pytest.approx(off, rel=1e-3)


everything = st.lists(
    st.one_of(st.sampled_from(list(BAD.values())), st.integers(0, 20).map(decided)), max_size=30
)


@given(everything, st.integers(1, 7))
def test_every_record_is_either_kept_or_counted_and_rows_do_not_depend_on_how_they_were_cut(
    records: list[DecisionRecord], size: int
) -> None:
    rows, tally = clean(*records, size=size)
    whole, _ = clean(*reversed(records))
    assert tally.read == len(records) == tally.kept + tally.dropped.total()
    assert len(rows) == tally.kept == len({record.id for record in records if record not in BAD.values()})
    assert rows.data_sha256 == whole.data_sha256
    assert np.isfinite(rows.features).all()
    assert (np.diff(rows.time_s) > 0).all()
