"""What is taken for the actual value of a term."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learnedrecords import decided, ended

from kvferry.integrations.learning.actuals import actuals
from kvferry.integrations.learning.chunk import chunks_of
from kvferry.integrations.log.record import DecisionRecord, Stages
from kvferry.policy.correction import TARGETS

SPLIT, ALONE = decided(1), decided(2)
MEASURED = {
    "ingress_s": 0.001,
    "bootstrap_s": 0.002,
    "queue_s": 0.003,
    "prefill_s": 0.05,
    "transfer_s": 0.02,
    "alloc_s": 0.004,
    "decode_queue_s": 0.005,
}


def of(record: DecisionRecord, **outcome: Any) -> tuple[dict[str, float], list[str]]:
    (chunk,) = chunks_of([ended(record, **outcome)])
    found, doubted = actuals(chunk)
    return dict(zip(TARGETS, found[0].tolist(), strict=True)), [
        why for why, rows in doubted.items() if rows[0]
    ]


def test_of_a_split_request_the_terms_add_up_to_its_ttft() -> None:
    found, doubted = of(SPLIT, ttft_s=0.086, stages=Stages(**MEASURED))
    assert doubted == []
    assert found["queue"] == pytest.approx(0.006)
    assert found["prefill"] == 0.05
    assert found["transfer"] == 0.02
    assert found["admission"] == pytest.approx(0.009)
    assert math.isnan(found["repack"])
    terms = ("queue", "prefill", "transfer", "admission")
    assert found["ttft"] == pytest.approx(sum(found[name] for name in terms), rel=0.02)


def test_of_a_colocated_request_nothing_moves_and_admission_is_in_the_queue() -> None:
    found, _ = of(ALONE, ttft_s=0.06, stages=Stages(ingress_s=0.001, queue_s=0.003, prefill_s=0.05))
    assert found["queue"] == pytest.approx(0.004)
    assert [name for name, seconds in found.items() if math.isnan(seconds)] == [
        "transfer",
        "repack",
        "admission",
    ]


@pytest.mark.parametrize(
    ("stage", "unknown"),
    [
        ("bootstrap_s", {"queue"}),
        ("queue_s", {"queue"}),
        ("prefill_s", {"prefill"}),
        ("transfer_s", {"transfer"}),
        ("alloc_s", {"admission"}),
        ("decode_queue_s", {"admission"}),
        ("ingress_s", set()),
    ],
)
def test_what_nobody_measured_is_unknown_and_the_rest_is_not(stage: str, unknown: set[str]) -> None:
    found, _ = of(SPLIT, ttft_s=0.086, stages=Stages(**{**MEASURED, stage: None}))
    assert {name for name, seconds in found.items() if math.isnan(seconds)} == unknown | {"repack"}


def test_stages_of_clocks_that_disagree_are_not_believed_but_the_router_s_own_times_are() -> None:
    for stages, why in (
        ({**MEASURED, "transfer_s": -0.01}, "negative_stage"),
        ({**MEASURED, "transfer_s": 7.0}, "stages_longer_than_ttft"),
    ):
        found, doubted = of(SPLIT, ttft_s=0.086, itl_s=0.01, stages=Stages(**stages))
        assert doubted == [why]
        assert (found["ttft"], found["itl"]) == (0.086, 0.01)
        assert all(math.isnan(found[name]) for name in ("queue", "prefill", "transfer", "admission"))


def test_a_retraction_hides_how_long_decoding_waited_at_first() -> None:
    found, _ = of(SPLIT, ttft_s=0.086, stages=Stages(**MEASURED), retractions=1)
    assert math.isnan(found["admission"])
    assert found["transfer"] == 0.02


def test_a_gap_of_no_time_is_no_gap_and_a_prefill_of_no_time_none() -> None:
    found, doubted = of(SPLIT, ttft_s=0.086, itl_s=9e-8, stages=Stages(**{**MEASURED, "prefill_s": 0.0}))
    assert math.isnan(found["itl"])
    assert math.isnan(found["prefill"])
    assert doubted == ["itl_of_a_burst"]


seconds = st.one_of(st.none(), st.floats(-1.0, 1e4))


@given(st.fixed_dictionaries(dict.fromkeys(MEASURED, seconds)), seconds, seconds, st.booleans())
def test_no_actual_value_is_ever_negative_or_infinite(
    stages: dict[str, float | None], ttft_s: float | None, itl_s: float | None, split: bool
) -> None:
    record = ended(SPLIT if split else ALONE, ttft_s=ttft_s, itl_s=itl_s, stages=Stages(**stages))
    (chunk,) = chunks_of([record])
    found, _ = actuals(chunk)
    terms = found[0, TARGETS.index("queue") :]
    assert not np.isinf(found).any()
    assert (terms[np.isfinite(terms)] >= 0.0).all()
