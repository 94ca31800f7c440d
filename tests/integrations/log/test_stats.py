import msgspec
import pytest

from kvferry.integrations.log import text
from kvferry.integrations.log.errors import covered, transfer_error, ttft_error
from kvferry.integrations.log.record import (
    NEVER_S,
    Chosen,
    DecisionRecord,
    Outcome,
    Stages,
    Term,
    Terms,
)
from kvferry.integrations.log.rows import header, row
from kvferry.integrations.log.stats import stats

SPLIT = Chosen("split:p>d@nixl", "split", "p", "d", "nixl")
ALONE = Chosen("colocated:c", "colocated", "c", "c")


def record(chosen: Chosen, outcome: Outcome | None, policy: str = "a", mode: str = "live") -> DecisionRecord:
    terms = Terms(ttft_s=Term(1.0, 2.0), transfer_s=Term(0.2, 0.3))
    return DecisionRecord("i", 0.0, chosen, "rule", policy=policy, mode=mode, terms=terms, outcome=outcome)  # type: ignore[arg-type]


def test_the_numbers_are_those_counted_by_hand() -> None:
    figures = stats(
        [
            record(SPLIT, Outcome(ttft_s=0.8, stages=Stages(transfer_s=0.1))),  # +25%, within, transfer +100%
            record(ALONE, Outcome(ttft_s=2.0), policy="b"),  # -50%, at its p90
            record(ALONE, Outcome(ttft_s=4.0)),  # -75%, above
            record(ALONE, Outcome(ttft_s=9.0, rescued_from=("colocated:x",), served_by="colocated:y")),
            record(SPLIT, Outcome(status="failed")),
            record(SPLIT, None),
            record(SPLIT, None, policy="s", mode="shadow"),
        ]
    )
    assert {name: value for name, value in figures.items() if name != "by_policy"} == {
        "requests": 6,
        "split_share": 0.5,
        "reasons": {"rule": 6},
        "rescued": 1,
        "failed": 1,
        "ttft_error_median": 0.5,
        "transfer_error_median": 1.0,
        "coverage_p90": pytest.approx(2 / 3),
    }
    assert set(figures["by_policy"]) == {"a", "b", "s"}
    assert figures["by_policy"]["b"]["ttft_error_median"] == 0.5
    assert figures["by_policy"]["s"] | {"reasons": 0} == {
        "requests": 1, "split_share": 1.0, "reasons": 0, "rescued": 0, "failed": 0,
        "ttft_error_median": None, "transfer_error_median": None, "coverage_p90": None,
    }  # fmt: skip


def test_nothing_is_known_of_no_request() -> None:
    figures = stats([])
    assert figures["requests"] == 0
    assert figures["split_share"] is None
    assert figures["by_policy"] == {}


def test_errors_are_signed_and_only_of_what_was_predicted() -> None:
    assert ttft_error(record(ALONE, Outcome(ttft_s=0.8))) == pytest.approx(0.25)
    assert ttft_error(record(ALONE, Outcome(ttft_s=0.0))) is None
    assert ttft_error(record(ALONE, Outcome(status="cancelled", ttft_s=0.5))) is None
    assert transfer_error(record(ALONE, Outcome(stages=Stages(transfer_s=0.1)))) is None
    assert ttft_error(record(ALONE, Outcome(ttft_s=0.8, rescued_from=("split:p>d@nixl",)))) is None
    assert covered(record(ALONE, Outcome(ttft_s=2.5))) is False
    assert covered(record(ALONE, Outcome(ttft_s=2.5, served_by="colocated:other"))) is None


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0.0, "0"), (12e-6, "12us"), (0.0034, "3.4ms"), (0.25, "250ms"), (0.9999, "1000ms"),
     (1.239, "1.24s"), (12.34, "12.3s"), (4000.0, "4000s"), (NEVER_S, "never")],
)  # fmt: skip
def test_durations_are_short(seconds: float | None, shown: str) -> None:
    assert text.duration(seconds) == shown or len(text.duration(seconds)) <= 6


@pytest.mark.parametrize("width", [80, 81, 100, 200])
def test_rows_fit_their_width_whatever_the_names(samples: list[DecisionRecord], width: int) -> None:
    long = Chosen("split:" + "p" * 90 + ">" + "d" * 90 + "@x", "split", "p" * 90, "d" * 90, "x")
    odd = msgspec.structs.replace(samples[0], id="i\n\x1b[31m" * 20, chosen=long, reason="r" * 60)
    for shown in [header(width), *(row(r, width) for r in [*samples, odd])]:
        assert len(shown) <= width
        assert shown.isprintable()


def test_a_plan_is_named_short() -> None:
    assert text.plan("split:http://127.0.0.1:1>http://127.0.0.1:2@nixl") == "split 1>2"
    assert text.plan("colocated:http://10.0.0.7:30000") == "colo 10.0.0.7:30000"
    assert text.plan("split:prefill-a>decode-b@mooncake") == "split prefill-a>decode-b"
    assert text.plan("something else") == "something else"
    far = "split:http://10.0.0.1:30000>http://10.0.0.2:30000@nixl"
    assert text.plan(far, 17) == "split .1>.2"
    assert text.plan(far) == "split 10.0.0.1:30000>10.0.0.2:30000"
    assert text.plan(far.replace("2:30000", "2:30001"), 17) == ".1:30000>.2:30001"
    assert text.plan("split:http://prefill-a.dc:1>http://decode-b.dc:1@x", 17) == "split prefill-a>decode-b"
    assert text.clock(1e30) == "?"
