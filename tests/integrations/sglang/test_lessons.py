"""What ended requests teach: which outcomes count, and for what."""

import dataclasses
import math
from typing import Any

import msgspec
import pytest

from kvferry.integrations.log.record import (
    NEVER_S,
    Chosen,
    DecisionRecord,
    Moved,
    Outcome,
    RequestFacts,
    Stages,
    Term,
    Terms,
)
from kvferry.integrations.sglang.lessons import Lessons
from kvferry.models.terms.way import Way
from kvferry.policy.costs import Costs, Estimate
from kvferry.policy.link import Link

LINK = Link("a", "b", "mooncake", "ib", 1e-3, 1e9, 1e9, 0.0, handoff_s=2e-3)
WAY = Way(LINK, others=0, new_tokens=2000, chunk_tokens=4096)
NOTHING = Estimate(0.0, 0.0)


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def record(split: bool = True, **terms: float) -> DecisionRecord:
    told = {name: Term(value, value) for name, value in {"ttft_s": 0.2, "itl_s": 0.01, **terms}.items()}
    return DecisionRecord(
        "r",
        0.0,
        Chosen("p", "split" if split else "colocated", "a", "b", moved_bytes=200_000_000),
        "rule",
        request=RequestFacts(model="m", max_new_tokens=1000),
        terms=Terms(**told),
    )


def taught(*outcomes: Outcome, way: Way | None = WAY, ends_itself: bool = True, split: bool = True,
           lessons: Lessons | None = None, **terms: float) -> Lessons:  # fmt: skip
    lessons = lessons or Lessons(Clock())
    for outcome in outcomes:
        lessons.decided(record(split, **terms), way, ends_itself=ends_itself)
        lessons.told(record(split, **terms), outcome)
        assert lessons.waiting == 0
    return lessons


def ok(**told: Any) -> Outcome:
    return Outcome(**{"ttft_s": 0.4, "itl_s": 0.02, "output_tokens": 50, **told})


def slowness(lessons: Lessons) -> float:
    """How many times as long as the catalogue says a move of 0.2 s is thought to take."""
    state = lessons.learner.state("m", [LINK], [""])
    factor = state["link_slowness"][0] * state["link_byte_factor"][0]
    return float(factor + state["link_offset_s"][0] / 0.2)


def test_the_modes_bias_is_learned_against_what_was_predicted_with_it() -> None:
    lessons = Lessons(Clock())
    for _ in range(1000):
        bias = lessons.calibration("m").bias(split=False)
        terms = {"ttft_s": 0.2 * math.exp(bias.ttft), "itl_s": 0.01 * math.exp(bias.itl)}
        taught(ok(), way=None, split=False, lessons=lessons, **terms)
    assert lessons.calibration("m").ttft == pytest.approx((math.log(2), 0.0), abs=1e-6)
    assert lessons.calibration("m").itl == pytest.approx((math.log(2), 0.0), abs=1e-6)
    assert lessons.calibration("other").ttft == (0.0, 0.0)


@pytest.mark.parametrize(
    ("outcome", "terms"),
    [
        (ok(status="failed"), {}),
        (ok(status="rejected"), {}),
        (ok(status="cancelled"), {}),
        (ok(rescued_from=("x",)), {}),
        (ok(ttft_s=None, itl_s=None), {}),
        (ok(), {"ttft_s": NEVER_S, "itl_s": NEVER_S}),
        (ok(), {"ttft_s": 0.0, "itl_s": 0.0}),
    ],
)
def test_only_what_ran_as_it_was_predicted_says_how_good_that_was(
    outcome: Outcome, terms: dict[str, float]
) -> None:
    lessons = taught(*[outcome] * 5, **terms)
    assert lessons.calibration("m").ttft == (0.0, 0.0)
    assert lessons.calibration("m").itl == (0.0, 0.0)


@pytest.mark.parametrize(
    "told",
    [
        {"stages": Stages(transfer_s=2.003, prefill_s=0.3)},
        {"moved": Moved(busy_s=0.2), "stages": Stages(transfer_s=2.003)},
        {"moved": Moved(busy_s=4.0), "moved_bytes": 400_000_000},
        {"ttft_s": 2.6},
    ],
)
def test_a_slow_link_shows_in_whatever_is_told_of_its_moves(told: dict[str, Any]) -> None:
    terms = {"queue_s": 0.1, "prefill_s": 0.3, "admission_s": 0.05}
    assert 4.0 < slowness(taught(*[ok(**told)] * 4, **terms)) < 11.0
    usual = {"stages": Stages(transfer_s=0.203)}
    assert 0.9 < slowness(taught(*[ok(**usual)] * 4, **terms)) < 1.1
    assert slowness(taught(*[ok(status="failed", **told)] * 4, **terms)) == 1.0
    assert slowness(taught(*[ok(**told)] * 4, way=None, **terms)) == 1.0


def test_other_moves_on_the_link_explain_their_part() -> None:
    crowded = msgspec.structs.replace(ok(), moved=Moved(busy_s=0.8))
    way = Way(LINK, others=3, new_tokens=2000, chunk_tokens=4096)
    assert slowness(taught(*[crowded] * 4, way=way)) == pytest.approx(1.0, abs=0.05)
    assert slowness(taught(*[crowded] * 4)) > 3.0


def test_a_first_contact_is_not_held_against_the_link() -> None:
    meeting = Link("a", "b", "mooncake", "ib", 1e-3, 1e9, 1e9, 0.0, 1e-9, 1.0)
    told = ok(stages=Stages(transfer_s=1.4))
    assert slowness(taught(*[told] * 4, way=Way(meeting, 0, 2000, 4096, first_contact=True))) < 1.1
    assert slowness(taught(*[told] * 4, way=Way(meeting, 0, 2000, 4096))) > 3.0


def test_moves_that_do_not_arrive_tell_until_they_do() -> None:
    lessons = Lessons(Clock())
    costs = Costs(
        NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, 0.0, 0.0, 200_000_000
    )
    for name in "xyz":
        lessons.sent(name, WAY, costs)
    for _ in range(20):
        lessons.clock()
    assert slowness(lessons) > 3.0
    for name in "xyz":
        lessons.arrived(name)
    lessons.clock()
    assert slowness(lessons) == 1.0


def test_lengths_are_those_of_answers_that_end_themselves() -> None:
    assert taught(*[ok(output_tokens=50)] * 200).lengths.expect("m", 1000)[0] == pytest.approx(60.0, abs=15)
    assert taught(*[ok(output_tokens=50)] * 200, ends_itself=False).lengths.expect("m", 1000) == (
        256.0,
        1000.0,
    )
    assert taught(*[ok(output_tokens=50, status="failed")] * 9).lengths.expect("m", 1000) == (256.0, 1000.0)
    left = taught(*[ok(output_tokens=50, status="cancelled")] * 200)
    assert left.lengths.expect("m", 1000)[0] > 250.0
    asked = taught(*[ok(output_tokens=1000)] * 200)
    assert asked.lengths.expect("m", 4000)[0] > 1000.0
    assert asked.lengths.expect("other", 4000) == (256.0, 4000.0)


def test_a_request_that_was_never_decided_teaches_nothing() -> None:
    lessons = Lessons(Clock())
    lessons.told(record(), ok())
    assert lessons.calibration("m").ttft == (0.0, 0.0)
    assert lessons.lengths.expect("m", 1000) == (256.0, 1000.0)


@pytest.mark.parametrize(("merges", "expected"), [(True, 1e-6), (False, 0.0)])
def test_pages_that_came_to_lie_apart_are_counted_where_neighbours_are_merged(
    merges: bool, expected: float
) -> None:
    link = dataclasses.replace(LINK, merges_runs=merges)
    lessons, way = Lessons(Clock()), Way(link, others=0, new_tokens=2000, chunk_tokens=4096)

    def known() -> float:
        return float(lessons.learner.state("m", [link], ["direct"])["link_more_per_byte"][0])

    for _ in range(50):
        predicted = round(8 + known() * 200_000_000)
        chosen = Chosen("p", "split", "a", "b", relation="direct", moved_bytes=200_000_000)
        made = msgspec.structs.replace(
            record(), chosen=msgspec.structs.replace(chosen, descriptors=predicted)
        )
        lessons.decided(made, way, ends_itself=True)
        lessons.told(made, ok(descriptors=108, moved_bytes=100_000_000))
    assert known() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("corrected", [False, True])
def test_how_far_moves_scatter_is_learned_of_whoever_said_their_90th_percentile(corrected: bool) -> None:
    lessons = Lessons(Clock())
    made = record()
    said = Term(0.05, 0.1, 0.2 if corrected else 0.0)
    made = msgspec.structs.replace(made, terms=msgspec.structs.replace(made.terms, transfer_s=said))
    for _ in range(20):
        lessons.decided(made, WAY, ends_itself=True)
        lessons.told(made, ok(stages=Stages(transfer_s=0.3, prefill_s=0.1)))
    other = dataclasses.replace(LINK, dst_host="c")
    state = lessons.learner.state("m", [LINK, other], ["", ""])
    wide, untouched = state["link_wide"].tolist()
    (of_model,) = state["transfer_wide"].tolist()
    assert (wide > 0.5, of_model > 0.5) == (not corrected, corrected)
    assert untouched == 0.0
