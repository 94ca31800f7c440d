"""kvferry's own log, as it is written, read as a workload."""

from pathlib import Path

import msgspec
import pytest

from kvferry.integrations.log.record import Chosen, DecisionRecord, Outcome, RequestFacts
from kvferry.models.workload.base import MAX_NEW_TOKENS
from kvferry.models.workload.reader import read
from kvferry.models.workload.trace_file import TraceError

CHOSEN = Chosen(plan="a", mode="colocated", prefill="a", decode="a")


def record(time: float, request: RequestFacts, outcome: Outcome | None) -> DecisionRecord:
    return DecisionRecord(
        id=str(time), time=time, chosen=CHOSEN, reason="r", request=request, outcome=outcome
    )


def written(folder: Path, *records: DecisionRecord) -> Path:
    file = folder / "decisions.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in records))
    return file


def test_records_as_requests_in_the_order_of_their_decisions(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        record(
            1002.5,
            RequestFacts(prompt_tokens=90, max_new_tokens=64),
            Outcome(prompt_tokens=100, output_tokens=7),
        ),
        record(1000.0, RequestFacts(prompt_tokens=50), Outcome(output_tokens=9)),
    )
    workload = read(file)
    assert workload.arrival_s.tolist() == [0, 2.5]
    assert workload.prompt_tokens.tolist() == [50, 100]
    assert workload.output_tokens.tolist() == [9, 7]
    assert workload.max_new_tokens.tolist() == [MAX_NEW_TOKENS, 64]
    assert len(workload.block_ids) == 0


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (None, 40),
        (Outcome(status="failed"), 40),
        (Outcome(status="cancelled", output_tokens=3), 40),
        (Outcome(status="cancelled", output_tokens=60), 60),
        (Outcome(status="ok", output_tokens=3), 3),
    ],
)
def test_what_ended_early_was_asked_for_all_the_same(
    tmp_path: Path, outcome: Outcome | None, expected: int
) -> None:
    facts = RequestFacts(prompt_tokens=10, expected_output_tokens=40.2)
    assert read(written(tmp_path, record(1, facts, outcome))).output_tokens.tolist() == [expected]


def test_sequences_share_their_prompt(tmp_path: Path) -> None:
    workload = read(
        written(
            tmp_path,
            record(
                1,
                RequestFacts(prompt_tokens=1100, sequences=3),
                Outcome(output_tokens=31, prompt_tokens=3300),
            ),
            record(2, RequestFacts(prompt_tokens=2000), Outcome(output_tokens=5)),
        )
    )
    assert workload.prompt_tokens.tolist() == [1100, 1100, 1100, 2000]
    assert workload.output_tokens.tolist() == [11, 11, 11, 5]
    assert [workload.blocks_of(row) for row in range(4)] == [[0, 1], [0, 1], [0, 1], []]


def test_another_version_or_an_unusable_record_is_refused(tmp_path: Path) -> None:
    good = record(1, RequestFacts(prompt_tokens=10), Outcome(output_tokens=5))
    file = written(tmp_path, good, record(2, RequestFacts(), None))
    with pytest.raises(TraceError, match=r"line 2: request.prompt_tokens = 0"):
        read(file)
    other = msgspec.json.encode(good).replace(b"decision.v1", b"decision.v7")
    file.write_bytes(msgspec.json.encode(good) + b"\n" + other + b"\n")
    with pytest.raises(TraceError, match=r"line 2: schema = 'kvferry.decision.v7'"):
        read(file)
    wrong = msgspec.json.encode(good).replace(b'"prompt_tokens":10', b'"prompt_tokens":"ten"')
    file.write_bytes(msgspec.json.encode(good) + b"\n" + wrong + b"\n")
    with pytest.raises(TraceError, match=r"line 2: request.prompt_tokens = 'ten'"):
        read(file)
