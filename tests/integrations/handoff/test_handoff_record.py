import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.handoff.costs import STARTS, LearnedCost, start_of
from kvferry.integrations.handoff.record import HandoffRecord
from kvferry.models.moves.choose import Form, PathCost

MIB = 2**20
RECORD = HandoffRecord(
    src="prefill",
    dst="decode",
    transport="nixl",
    relation="direct",
    form=Form.SCATTERED,
    tokens=64,
    moved_bytes=8 * MIB,
    src_bytes=8 * MIB,
    dst_bytes=8 * MIB,
    descriptors=100,
    batches=4,
    concurrency=1,
    registration_s=0.0,
    first_contact_s=0.0,
    post_s=0.001,
    wire_s=0.007,
    transport_s=0.008,
    gather_s=0.0,
    convert_s=0.0,
    scatter_s=0.0,
    verify_s=0.0,
    total_s=0.010,
)


def scattered(cost: PathCost, moved_bytes: int, descriptors: int, **changed: object) -> HandoffRecord:
    took_s = cost.alpha_s + cost.s_per_byte * moved_bytes + cost.s_per_descriptor * descriptors
    return dataclasses.replace(
        RECORD,
        moved_bytes=moved_bytes,
        descriptors=descriptors,
        batches=1,
        transport_s=took_s,
        total_s=took_s,
        **changed,
    )


def staged(cost: PathCost, moved_bytes: int, batches: int, hidden: float = 0.0) -> HandoffRecord:
    wire_s = batches * (cost.alpha_s + cost.s_per_descriptor) + cost.s_per_byte * moved_bytes
    gather_s, scatter_s = (each * moved_bytes for each in (cost.gather_s_per_byte, cost.scatter_s_per_byte))
    around_s = (gather_s + scatter_s) * (1.0 - hidden)
    return dataclasses.replace(
        RECORD,
        form=Form.STAGED,
        moved_bytes=moved_bytes,
        src_bytes=moved_bytes,
        dst_bytes=moved_bytes,
        descriptors=batches,
        batches=batches,
        transport_s=wire_s,
        gather_s=gather_s,
        scatter_s=scatter_s,
        total_s=wire_s + around_s + batches * cost.acknowledgement_s,
    )


def test_a_sample_is_the_mean_batch():
    sample = RECORD.sample()
    assert (sample.moved_bytes, sample.descriptors, sample.total_s) == (2 * MIB, 25, 0.002)
    assert RECORD.path == "prefill>decode@nixl"
    with pytest.raises(ValueError, match="nothing moved"):
        dataclasses.replace(RECORD, batches=0).sample()


@given(
    factors=st.tuples(*[st.floats(0.2, 8.0)] * 3),
    order=st.permutations([(4096, 1), (MIB, 1), (MIB, 256), (8 * MIB, 64), (64 * MIB, 1024), (65536, 64)]),
)
def test_alpha_beta_and_gamma_become_those_of_what_moved(factors, order):
    start = STARTS["mooncake"]
    real = dataclasses.replace(
        start,
        alpha_s=start.alpha_s * factors[0],
        s_per_byte=start.s_per_byte * factors[1],
        s_per_descriptor=start.s_per_descriptor * factors[2],
    )
    learned = LearnedCost(start)
    for moved_bytes, descriptors in order * 10:
        learned.learn(scattered(real, moved_bytes, descriptors))
    cost = learned.cost
    for moved_bytes, descriptors in order:
        predicted, seen = (scattered(each, moved_bytes, descriptors).transport_s for each in (cost, real))
        assert predicted == pytest.approx(seen, rel=0.25)


def test_without_a_move_a_path_costs_what_it_started_with():
    for name, start in STARTS.items():
        assert start_of(name) is start
        cost = LearnedCost(start).cost
        for field in dataclasses.fields(PathCost):
            assert getattr(cost, field.name) == pytest.approx(getattr(start, field.name))
    assert start_of("other") is STARTS["mooncake"]


def test_a_path_that_became_ten_times_slower_is_believed_after_some_moves():
    start = STARTS["mooncake"]
    slow = dataclasses.replace(start, s_per_byte=start.s_per_byte * 10)
    learned = LearnedCost(start)
    for _ in range(50):
        learned.learn(scattered(start, 8 * MIB, 1))
    for _ in range(40):
        learned.learn(scattered(slow, 8 * MIB, 1))
    assert 5 < learned.cost.s_per_byte / start.s_per_byte < 11


def test_one_move_that_was_held_up_changes_little():
    start = STARTS["mooncake"]
    learned = LearnedCost(start)
    for turn in range(40):
        record = scattered(start, 8 * MIB, 64)
        learned.learn(dataclasses.replace(record, transport_s=30.0) if turn == 20 else record)
    assert scattered(learned.cost, 8 * MIB, 64).transport_s < 1.3 * record.transport_s


def test_moves_that_shared_the_transport_teach_nothing_of_the_path():
    start = STARTS["mooncake"]
    learned = LearnedCost(start)
    for _ in range(50):
        learned.learn(dataclasses.replace(scattered(start, 8 * MIB, 1), concurrency=3, transport_s=9.0))
    assert learned.cost.s_per_byte == pytest.approx(start.s_per_byte)


@given(hidden=st.floats(0.0, 0.95))
def test_what_the_wire_hides_of_gather_and_scatter_counts_for_nothing(hidden):
    start = STARTS["mooncake"]
    real = dataclasses.replace(start, gather_s_per_byte=0.5e-9, scatter_s_per_byte=1.5e-9)
    learned = LearnedCost(start)
    for _ in range(60):
        learned.learn(staged(real, 32 * MIB, 4, hidden))
    cost = learned.cost
    assert cost.gather_s_per_byte == pytest.approx(0.5e-9 * max(1.0 - hidden, 0.02), rel=0.05)
    assert cost.scatter_s_per_byte == pytest.approx(1.5e-9 * max(1.0 - hidden, 0.02), rel=0.05)


def test_gated_and_verified_moves_do_not_say_what_the_wire_hides():
    start = STARTS["mooncake"]
    learned = LearnedCost(start)
    record = staged(start, 32 * MIB, 4)
    learned.learn(record)
    before = learned.cost.scatter_s_per_byte
    for changed in ({"gated": True}, {"verified": True}):
        learned.learn(dataclasses.replace(record, total_s=60.0, **changed))
    assert learned.cost.scatter_s_per_byte == pytest.approx(before)
    assert math.isfinite(before)
