"""What the workers' records correct in an outcome: the first token nobody saw, the tokens nobody counted."""

from typing import Any

import pytest

from kvferry.integrations.log.record import Outcome, RequestFacts, Stages
from kvferry.integrations.sglang.join_outcome import told
from kvferry.integrations.sglang.join_stages import Door
from kvferry.integrations.sglang.join_trip import Sent, Trip
from kvferry.integrations.sglang.plugin import wire

PREFILL = wire.RequestRecord(
    "i",
    "prefill",
    "r",
    5,
    received_s=10.0,
    wall_s=2.0,
    ended_s=12.0,
    output_tokens=1,
    stages=wire.Stages(
        prepare_s=0.1, bootstrap_s=0.4, alloc_s=0.0, queue_s=0.5, prefill_s=0.5, transfer_s=0.5
    ),
)
DECODE = wire.RequestRecord(
    "j",
    "decode",
    "r",
    5,
    received_s=10.0,
    wall_s=5.0,
    ended_s=15.0,
    output_tokens=21,
    stages=wire.Stages(
        prepare_s=0.0, bootstrap_s=0.1, alloc_s=0.1, transfer_s=1.8, queue_s=0.25, decode_s=2.75
    ),
)
HERE = Door(9.5, 15.1, frozenset(("p", "d")))
SEEN = Outcome(ttft_s=5.5, itl_s=0.1, e2e_s=5.6, output_tokens=11)


def outcome_of(stream: bool, seen: Outcome = SEEN, door: Door = HERE, decode: Any = DECODE) -> Outcome:
    trip = Trip(Sent("p", "d", rooms=(5,)), frozenset(("prefill", "decode")), {}, 0.0)
    trip.take(5, PREFILL)
    if decode is not None:
        trip.take(5, decode)
    return told(RequestFacts(stream=stream), seen, trip, door, one_clock=True, missing={})


def test_the_first_token_of_an_unstreamed_split_is_where_decoding_begins() -> None:
    found = outcome_of(stream=False)
    stages = found.stages
    before = [stages.ingress_s, stages.bootstrap_s, stages.alloc_s, stages.queue_s, stages.prefill_s]
    total = sum(part or 0.0 for part in (*before, stages.transfer_s, stages.decode_queue_s))
    assert found.ttft_s == pytest.approx(total)
    assert found.ttft_s == pytest.approx(15.0 - 2.75 - 9.5)


def test_a_streams_first_token_is_what_its_client_saw() -> None:
    assert outcome_of(stream=True).ttft_s == SEEN.ttft_s


def test_half_a_story_and_a_far_host_leave_what_was_seen() -> None:
    assert outcome_of(stream=False, decode=None).ttft_s == SEEN.ttft_s
    assert outcome_of(stream=False, door=Door(9.5, 15.1)).ttft_s == SEEN.ttft_s


def test_tokens_are_those_that_the_worker_counted() -> None:
    found = outcome_of(stream=True)  # an event may carry two tokens, or half of one
    assert found.output_tokens == 21
    assert found.itl_s == pytest.approx(SEEN.itl_s * 10 / 20)
    assert outcome_of(stream=True, decode=None).output_tokens == SEEN.output_tokens


def test_time_given_to_attempts_that_failed_is_no_part_of_the_way_in() -> None:
    rescued = Outcome(ttft_s=5.5, e2e_s=47.1, stages=Stages(rescue_s=41.5))
    found = outcome_of(stream=False, seen=rescued)
    assert found.stages.rescue_s == 41.5
    assert found.stages.ingress_s == pytest.approx(0.6)
    assert found.ttft_s == pytest.approx(41.5 + 15.0 - 2.75 - 9.5)
