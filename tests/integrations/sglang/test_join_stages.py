"""The stages of a request are a partition of its way: hand-computed, and for any marks."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.log.record import Stages
from kvferry.integrations.sglang.join_clock import is_here
from kvferry.integrations.sglang.join_stages import Door, alone_stages, egress_s, ingress_s, split_stages
from kvferry.integrations.sglang.plugin import wire


def record(role: str, received_s: float, **stages: float) -> wire.RequestRecord:
    wall_s = sum(stages.values())
    return wire.RequestRecord(
        worker="w", role=role, rid="r", received_s=received_s, wall_s=wall_s, ended_s=received_s + wall_s,
        stages=wire.Stages(**stages),
    )  # fmt: skip


def total(stages: Stages) -> float:
    return sum(getattr(stages, name) or 0.0 for name in stages.__struct_fields__)


# Prefill has the request at 10.0, decode at 10.1. Decode shakes hands until 10.15 and finds KV room at 10.35;
# the prefill worker hears of it at 10.4, waits 0.01 for a buffer and 0.09 in its queue, computes from 10.5 to
# 11.5; decode sees the KV at 11.8, begins at 11.9 and ends at 13.9.
PREFILL = record("prefill", 10.0, bootstrap_s=0.4, alloc_s=0.01, queue_s=0.09, prefill_s=1.0, transfer_s=0.2)
DECODE = record("decode", 10.1, bootstrap_s=0.05, alloc_s=0.2, transfer_s=1.45, queue_s=0.1, decode_s=2.0)


def test_a_split_on_one_host_is_cut_at_marks() -> None:
    found = split_stages(PREFILL, DECODE, one_clock=True)
    assert found == Stages(
        bootstrap_s=pytest.approx(0.2), alloc_s=pytest.approx(0.2), queue_s=pytest.approx(0.1),
        prefill_s=1.0, transfer_s=pytest.approx(0.3), decode_queue_s=0.1, decode_s=2.0,
    )  # fmt: skip
    assert total(found) == pytest.approx(DECODE.ended_s - PREFILL.received_s)


def test_across_hosts_durations_are_chained_whatever_the_clocks_say() -> None:
    far = record("decode", 9_999.0, **{name: value for name, value in _told(DECODE).items()})
    found = split_stages(PREFILL, far, one_clock=False)
    assert found.transfer_s == 0.2
    assert found.alloc_s == 0.2
    assert found.bootstrap_s == pytest.approx(0.2)
    # what is missing is the decode worker's last poll: 11.8 - 11.7
    assert total(found) == pytest.approx(DECODE.ended_s - PREFILL.received_s - 0.1)


@pytest.mark.parametrize(("done_s", "transfer_s"), [(1.55, 0.05), (1.2, 0.0), (None, 0.2)])
def test_the_prefill_worker_alone_knows_when_its_last_call_was_done(
    done_s: float | None, transfer_s: float
) -> None:
    moved = msgspec.structs.replace(PREFILL, transfer=wire.Transfer("nixl", done_s=done_s))
    for decode in (None, DECODE):
        found = split_stages(moved, decode, one_clock=False)
        assert found.transfer_s == pytest.approx(transfer_s)
    here = split_stages(moved, DECODE, one_clock=True)
    assert here.transfer_s == pytest.approx(0.3 if done_s is None else transfer_s)
    assert here.decode_queue_s == pytest.approx(0.4 - here.transfer_s), "until the decode worker noticed"
    assert total(here) == pytest.approx(DECODE.ended_s - PREFILL.received_s)


def test_kv_room_that_was_found_before_the_prefill_worker_asked_cost_nothing() -> None:
    early = record("decode", 9.0, bootstrap_s=0.1, alloc_s=0.5, transfer_s=2.2, queue_s=0.1, decode_s=2.0)
    found = split_stages(PREFILL, early, one_clock=True)
    assert found.alloc_s == 0.0
    assert found.bootstrap_s == 0.4


def test_only_a_prefill_worker_that_tells() -> None:
    found = split_stages(PREFILL, None, one_clock=True)
    assert (found.bootstrap_s, found.queue_s, found.prefill_s, found.transfer_s) == (0.4, 0.1, 1.0, 0.2)
    assert (found.alloc_s, found.decode_queue_s, found.decode_s) == (None, None, None)


def test_only_a_decode_worker_that_tells() -> None:
    found = split_stages(None, DECODE, one_clock=True)
    assert (found.alloc_s, found.decode_queue_s, found.decode_s) == (0.2, 0.1, 2.0)
    assert (found.bootstrap_s, found.prefill_s, found.transfer_s) == (None, None, None)


def test_waits_after_a_retraction_are_the_decode_queue() -> None:
    again = record("decode", 0.0, queue_s=0.1, requeue_s=0.4, decode_s=1.0)
    assert split_stages(None, again, one_clock=True).decode_queue_s == 0.5
    alone = alone_stages(record("local", 0.0, queue_s=0.1, prefill_s=0.2, requeue_s=0.4, decode_s=1.0))
    assert (alone.queue_s, alone.decode_queue_s) == (0.1, 0.4)
    assert total(alone) == pytest.approx(1.7)


def test_an_aborted_request_has_the_stages_that_it_reached() -> None:
    found = split_stages(record("prefill", 0.0, bootstrap_s=3.0), None, one_clock=True)
    assert (found.bootstrap_s, found.queue_s, found.prefill_s, found.transfer_s) == (3.0, None, None, None)
    both = split_stages(
        record("prefill", 0.0, bootstrap_s=3.0), record("decode", 0.0, bootstrap_s=1.0), one_clock=True
    )
    assert (both.bootstrap_s, both.alloc_s, both.decode_s) == (3.0, None, None)


def test_the_ways_in_and_out_need_the_routers_clock() -> None:
    one = record("colocated", 10.2, prepare_s=0.05, queue_s=0.1, prefill_s=0.5, decode_s=1.0)
    near, far = Door(10.0, 12.0, frozenset({"w"})), Door(10.0, 12.0)
    assert ingress_s(one, "w", near) == pytest.approx(0.25)
    assert egress_s(one, "w", near) == pytest.approx(0.15)
    assert ingress_s(one, "w", far) == 0.05
    assert egress_s(one, "w", far) is None


spans = st.floats(0.0, 5.0)


@given(st.lists(spans, min_size=7, max_size=7), st.floats(-1.0, 1.0), st.floats(0.0, 1.0), spans, spans)
def test_on_one_host_the_stages_add_up_to_the_time_between_the_doors(
    parts: list[float], later: float, handshake: float, way_in: float, way_out: float
) -> None:
    prepare, shaking, alloc, queue, prefill, move, decoding = parts
    came = 1_000_000.0
    received = came + way_in
    decode_received = received + later
    # the prefill worker waits until the decode worker has told its pages, at whichever time that is
    pages_s = decode_received + handshake + alloc
    bootstrap = max(0.0, pages_s - received - prepare) + shaking
    computed_s = received + prepare + bootstrap + 0.01 + queue + prefill
    p = record(
        "prefill", received, prepare_s=prepare, bootstrap_s=bootstrap, alloc_s=0.01, queue_s=queue,
        prefill_s=prefill, transfer_s=move,
    )  # fmt: skip
    d = record(
        "decode", decode_received, bootstrap_s=handshake, alloc_s=alloc,
        transfer_s=computed_s + move - pages_s, queue_s=0.02, decode_s=decoding,
    )  # fmt: skip
    door = Door(came, d.ended_s + way_out, frozenset({"w"}))
    found = split_stages(p, d, one_clock=True)
    assert all(
        value is None or value >= -1e-6
        for value in (getattr(found, name) for name in found.__struct_fields__)
    )
    ends = (ingress_s(p, "w", door) or 0.0) + (egress_s(d, "w", door) or 0.0)
    assert total(found) + ends == pytest.approx(door.left_s - door.came_s, abs=1e-5)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9"])
def test_this_host_is_known(host: str) -> None:
    assert is_here(host)


@pytest.mark.parametrize("host", ["192.0.2.1", "0.0.0.0", "nowhere.invalid", "", "2001:db8::1"])
def test_another_host_is_not_this_one(host: str) -> None:
    assert not is_here(host)


def _told(of: wire.RequestRecord) -> dict[str, float]:
    values = {name: getattr(of.stages, name) for name in of.stages.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}
