"""What of a record counts for the health of learning."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvferry.integrations.log.codec import read_record
from kvferry.integrations.log.record import (
    NEVER_S,
    Chosen,
    DecisionRecord,
    Moved,
    Outcome,
    Stages,
    Term,
    Terms,
)
from kvferry.integrations.registry.health_feed import seen_of
from kvferry.models.health.seen import Pair

GOLDEN = Path(__file__).parents[1] / "log" / "golden"
STAGES = Stages(
    bootstrap_s=0.01, queue_s=0.02, prefill_s=0.1, transfer_s=0.03, alloc_s=0.001, ingress_s=0.005,
    decode_queue_s=0.002, decode_s=1.0,
)  # fmt: skip


def record(mode: Any = "split", outcome: Outcome | None = None, **told: Any) -> DecisionRecord:
    terms = Terms(**{name: Term(0.1, 0.2) for name in Terms.__struct_fields__})
    return DecisionRecord(
        "r", 0.0, Chosen("p", mode, "a", "b"), "queue_gain", terms=terms, outcome=outcome, **told
    )


def ok(**told: Any) -> Outcome:
    usual = {"ttft_s": 0.2, "itl_s": 0.01, "output_tokens": 50, "prompt_tokens": 9, "stages": STAGES}
    return Outcome(**{**usual, **told})


def test_measured_terms_are_those_that_are_predicted() -> None:
    split = seen_of(record(outcome=ok())).terms
    assert split["queue"] == Pair(0.1, 0.2, pytest.approx(0.035))
    assert split["admission"].actual_s == pytest.approx(0.003)
    assert {name: pair.actual_s for name, pair in split.items() if name not in ("queue", "admission")} == {
        "ttft": 0.2, "itl": 0.01, "prefill": 0.1, "transfer": 0.03,
    }  # fmt: skip
    alone = seen_of(record("colocated", ok())).terms
    assert set(alone) == {"ttft", "itl", "queue", "prefill"}
    assert alone["queue"].actual_s == pytest.approx(0.025)


@pytest.mark.parametrize(
    "outcome",
    [None, ok(status="failed"), ok(status="cancelled"), ok(rescued_from=("p",)), ok(served_by="other")],
)
def test_what_did_not_run_as_predicted_says_nothing_of_predictions(outcome: Outcome | None) -> None:
    assert seen_of(record(outcome=outcome)).terms == {}


def test_a_prediction_of_never_is_none() -> None:
    told = record(outcome=ok())
    never = msgspec.structs.replace(told.terms, ttft_s=Term(NEVER_S, NEVER_S))
    assert "ttft" not in seen_of(msgspec.structs.replace(told, terms=never)).terms
    retracted = seen_of(record(outcome=ok(retractions=1))).terms
    assert "admission" not in retracted


def test_stages_are_asked_for_where_all_telemetry_came() -> None:
    whole = seen_of(record(outcome=ok(moved_bytes=9, descriptors=1, moved=Moved()))).inputs
    assert whole["transfer_s"] == 0.03
    assert None not in [whole[name] for name in ("moved_bytes", "alloc_s", "descriptors")]
    assert seen_of(record(outcome=ok(stages=Stages()))).inputs["transfer_s"] is None
    without = seen_of(record(outcome=ok(stages=Stages(), missing={"a": "no_plugin", "b": "no_plugin"})))
    assert set(without.inputs) == {"ttft_s", "output_tokens", "prompt_tokens", "cached_tokens", "itl_s"}
    assert without.missing == ("no_plugin",)
    assert "transfer_s" not in seen_of(record("colocated", ok())).inputs
    assert "itl_s" not in seen_of(record(outcome=ok(output_tokens=1))).inputs


def test_a_fallback_is_of_a_learned_version() -> None:
    assert not seen_of(record(model_version="structured")).learned
    assert seen_of(record(model_version="m-1")).learned
    assert seen_of(record(model_version="structured", fallback="x is out")).learned


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("decision_v1*.json")), ids=lambda file: file.stem)
def test_records_of_every_age_can_be_seen(file: Path) -> None:
    old = read_record(file.read_bytes())
    seen = seen_of(old)
    assert seen.mode == old.chosen.mode
    assert seen.failed == (old.outcome is None or old.outcome.status == "failed")
