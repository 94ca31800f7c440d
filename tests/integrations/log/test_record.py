import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.log.codec import RecordError, read_record, write_record
from kvferry.integrations.log.convert import joined, record_of
from kvferry.integrations.log.record import NEVER_S, SCHEMA, DecisionRecord, Outcome, Term
from kvferry.policy.costs import Costs, Estimate
from kvferry.policy.decision import Decision, Reason
from kvferry.policy.plan import Colocated, Split
from kvferry.policy.request import Request

FOLDER = Path(__file__).parent / "golden"
GOLDEN = FOLDER / "decision_v1_catalogue.json"
EARLIER = tuple(
    FOLDER / f"{name}.json" for name in ("decision_v1", "decision_v1_telemetry", "decision_v1_learning")
)


def test_the_golden_record_stays_readable_and_byte_stable() -> None:
    line = GOLDEN.read_bytes().rstrip(b"\n")
    record = read_record(line)
    assert record.chosen.mode == "split"
    assert record.terms.ttft_s.p90 > record.terms.ttft_s.p50 > 0
    assert record.outcome is not None
    assert record.outcome.status == "ok"
    assert record.outcome.moved is not None
    assert len(record.features) == 24
    assert record.picture is not None
    assert record.catalogue_transfer_s == 0.0384
    # when a field is added, add a golden file that has it, and put this one among the earlier ones
    assert write_record(record) == line


@pytest.mark.parametrize("path", EARLIER, ids=lambda path: path.stem)
def test_an_earlier_golden_record_is_read_and_only_gains_fields(path: Path) -> None:
    told = json.loads(path.read_bytes())
    now = json.loads(write_record(read_record(path.read_bytes())))

    def kept(old: object, new: object) -> object:
        """`new`, cut down to what `old` has."""
        if isinstance(old, dict) and isinstance(new, dict):
            return {name: kept(old[name], new[name]) for name in old}
        if isinstance(old, list) and isinstance(new, list):
            return [kept(one, other) for one, other in zip(old, new, strict=True)]
        return new

    assert kept(told, now) == told
    assert read_record(path.read_bytes()).outcome == msgspec.convert(told["outcome"], Outcome)


def test_what_an_earlier_version_did_not_know_is_not_made_up() -> None:
    record = read_record(EARLIER[0].read_bytes())
    assert (record.explored, record.features, record.picture) == (False, (), None)
    outcome = record.outcome
    assert outcome is not None
    assert (outcome.moved, outcome.retractions, outcome.found, outcome.missing) == (None, None, {}, {})
    assert outcome.stages.decode_s is None
    assert read_record(EARLIER[-1].read_bytes()).catalogue_transfer_s == 0.0


def test_a_record_of_the_future_is_read_without_what_is_new() -> None:
    value = json.loads(GOLDEN.read_bytes())
    value["new_field"] = {"a": [1]}
    value["outcome"]["stages"]["warp_s"] = 1.0
    assert read_record(json.dumps(value)) == read_record(GOLDEN.read_bytes())


def test_an_early_record_without_later_fields_is_read() -> None:
    line = (
        b'{"schema":"kvferry.decision.v1","id":"a","time":1,"reason":"rule","chosen":'
        b'{"plan":"colocated:w","mode":"colocated","prefill":"w","decode":"w"}}'
    )
    record = read_record(line)
    assert record.outcome is None
    assert record.terms.ttft_s == Term()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"schema":"kvferry.decision.v9","id":3}', "is not 'kvferry.decision.v1'"),
        (b'{"hello": 1}', "no schema"),
        (b"[1]", "not a JSON record"),
        (b'{"id": "a", "time"', "not a JSON record"),
        (b"\xff\xfe\x00", "not a JSON record"),
        (b"", "not a JSON record"),
        (b'{"schema":"kvferry.decision.v1","id":"a"}', "missing required field"),
        (b'{"schema":"kvferry.decision.v1","id":5,"time":1}', "Expected `str`"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(line: bytes, message: str) -> None:
    with pytest.raises(RecordError, match=message) as told:
        read_record(line)
    assert "\n" not in str(told.value)


def test_no_field_of_a_record_can_hold_a_prompt(samples: list[DecisionRecord]) -> None:
    names = set()

    def collect(value: object) -> None:
        if isinstance(value, dict):
            names.update(value)
            for part in value.values():
                collect(part)
        elif isinstance(value, list | tuple):
            for part in value:
                collect(part)

    for record in samples:
        collect(msgspec.to_builtins(record))
    assert not names & {"prompt", "text", "messages", "input", "input_ids", "content", "block_hashes"}


seconds = st.floats()  # what is not finite included
estimates = st.builds(Estimate, seconds, seconds)
plans = st.one_of(
    st.builds(Colocated, st.text(max_size=8)), st.builds(Split, *(st.text(max_size=8) for _ in range(3)))
)
costs = st.builds(
    Costs, *(estimates for _ in range(8)), seconds, seconds, st.integers(0, 2**50), st.integers(0, 2**30)
)
decisions = st.builds(
    Decision,
    plans,
    st.sampled_from(Reason),
    costs,
    st.text(max_size=8),
    st.lists(st.tuples(plans, costs), max_size=5).map(tuple),
    st.dictionaries(st.text(max_size=8), st.sampled_from(Reason)),
    st.floats(0, 1),
    st.floats(0, 1),
)


@given(decision=decisions, seed=st.integers(0, 2**64 - 1), tokens=st.integers(0, 2**40))
def test_any_decision_becomes_a_record_that_reads_back_equal(
    decision: Decision, seed: int, tokens: int
) -> None:
    record = record_of(Request("id", "m", tokens, seed=seed), decision, time_s=1.5, router="r", decide_us=3.0)
    line = write_record(record)
    assert b"\n" not in line
    assert read_record(line) == record
    assert record.schema == SCHEMA
    assert len(record.alternatives) == min(3, len(decision.alternatives))
    assert record.propensity.plan == decision.propensity_plan


def test_values_the_policy_computes_with_numpy_are_plain_in_the_record() -> None:
    one = Estimate(np.float32(0.25), np.float64(np.inf))  # type: ignore[arg-type]
    figures = np.float64(np.nan), 0.0, np.int64(7), np.int64(2)
    costs = Costs(*(one,) * 8, *figures, catalogue_transfer_s=np.float32(0.5))  # type: ignore[arg-type]
    record = record_of(
        Request("i", "m", 1), Decision(Colocated("w"), Reason.RULE, costs, "p"), time_s=0.0, router="r"
    )
    assert record.terms.queue_s == Term(0.25, NEVER_S)
    assert record.chosen.score == NEVER_S
    assert record.chosen.moved_bytes == 7
    assert record.catalogue_transfer_s == 0.5
    assert read_record(write_record(record)) == record


def test_cached_tokens_are_those_of_the_chosen_prefill_worker() -> None:
    zero = Estimate(0.0, 0.0)
    costs = Costs(*(zero for _ in range(8)), 0.0, 0.0)
    request = Request("i", "m", 100, held_tokens={"p": 64, "d": 32})
    split = record_of(request, Decision(Split("p", "d", "t"), Reason.RULE, costs, "x"), time_s=0, router="r")
    alone = record_of(request, Decision(Colocated("d"), Reason.RULE, costs, "x"), time_s=0, router="r")
    assert split.request.cached_tokens == 64
    assert alone.request.cached_tokens == 32
    assert (alone.chosen.prefill, alone.chosen.decode, alone.chosen.transport) == ("d", "d", None)


def test_joining_changes_the_outcome_only(samples: list[DecisionRecord]) -> None:
    record = msgspec.structs.replace(samples[0], outcome=None)
    outcome = Outcome(ttft_s=1.0, rescued_from=("a", "b"))
    assert joined(record, outcome) == msgspec.structs.replace(record, outcome=outcome)
