"""Why a first token was late, in a sentence."""

import pytest

from kvferry.integrations.log.convert import joined
from kvferry.integrations.log.record import Chosen, DecisionRecord, Outcome, Stages, Term, Terms
from kvferry.integrations.log.stages import late_for


def record(**changes: float) -> DecisionRecord:
    seconds = {"queue_s": 0.01, "prefill_s": 0.1, "transfer_s": 0.02, "admission_s": 0.01, "ttft_s": 0.14}
    told = {name: Term(value, 2 * value) for name, value in {**seconds, **changes}.items()}
    return DecisionRecord("r", 0.0, Chosen("split:a>b@nixl", "split", "a", "b"), "rule", terms=Terms(**told))


def outcome(ttft_s: float, **stages: float) -> Outcome:
    return Outcome(ttft_s=ttft_s, stages=Stages(**stages))


def told(of: Outcome) -> str | None:
    return late_for(joined(record(), of))


def test_the_stage_that_took_longest_beyond_its_prediction_is_named() -> None:
    late = outcome(2.14, queue_s=0.01, prefill_s=2.05, transfer_s=0.05)
    assert told(late) == "late by 2.00s: prefill 2.05s where 100ms was predicted"


def test_several_are_named_where_none_is_half_of_it() -> None:
    late = outcome(1.14, queue_s=0.41, prefill_s=0.45, transfer_s=0.22)
    sentence = told(late)
    assert sentence is not None
    assert sentence.index("queue") < sentence.index("prefill")
    assert "transfer" not in sentence


@pytest.mark.parametrize(
    "of",
    [
        outcome(0.27, prefill_s=0.25),  # within its 90th percentile
        outcome(1.14),  # nothing measured
        outcome(1.14, prefill_s=0.1, transfer_s=0.05),  # what was measured does not account for it
        Outcome(status="failed", stages=Stages(prefill_s=3.0)),
        Outcome(ttft_s=1.14, stages=Stages(prefill_s=1.1), rescued_from=("split:a>c@nixl",)),
    ],
)
def test_nothing_is_said_where_nothing_is_known(of: Outcome) -> None:
    assert told(of) is None
