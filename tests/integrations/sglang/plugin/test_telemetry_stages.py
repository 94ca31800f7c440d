"""Stages from marks as SGLang sets them, and as it might."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.sglang.plugin.telemetry.stages import Parts, partition
from kvferry.integrations.sglang.plugin.wire import Role, Stages

NAMES = (
    "scheduler_recv_time", "prefill_bootstrap_queue_entry_time", "bootstrap_done_time",
    "wait_queue_entry_time", "forward_entry_time", "last_forward_entry_time", "prefill_finished_time",
    "completion_time", "decode_prealloc_queue_entry_time", "decode_transfer_queue_entry_time",
    "decode_prebuilt_finish_time",
    "queue_duration_s",
)  # fmt: skip
ROLES: tuple[Role, ...] = ("prefill", "decode", "colocated", "local")
PREFILL = {
    "prefill_bootstrap_queue_entry_time": 101.0, "bootstrap_done_time": 103.0, "wait_queue_entry_time": 103.5,
    "forward_entry_time": 105.0, "last_forward_entry_time": 105.0, "queue_duration_s": 1.5,
    "prefill_finished_time": 109.0, "completion_time": 116.0,
}  # fmt: skip
DECODE = {
    "decode_prealloc_queue_entry_time": 101.0, "bootstrap_done_time": 103.0,
    "decode_transfer_queue_entry_time": 106.0, "wait_queue_entry_time": 116.0, "forward_entry_time": 117.0,
    "last_forward_entry_time": 117.0, "queue_duration_s": 1.0, "decode_prebuilt_finish_time": 117.5,
    "completion_time": 130.0,
}  # fmt: skip
COLOCATED = {
    "wait_queue_entry_time": 101.0, "forward_entry_time": 104.0, "last_forward_entry_time": 104.0,
    "queue_duration_s": 3.0, "prefill_finished_time": 109.0, "completion_time": 120.0,
}  # fmt: skip


def marks(**given: float) -> SimpleNamespace:
    return SimpleNamespace(**{name: 0.0 for name in NAMES} | {"scheduler_recv_time": 100.0} | given)


def told(parts: Parts) -> dict[str, float]:
    values = {name: getattr(parts.stages, name) for name in Stages.__struct_fields__}
    return {name.removesuffix("_s"): value for name, value in values.items() if value is not None}


def test_each_role_from_its_marks() -> None:
    prefill = partition("prefill", marks(**PREFILL), 999.0)
    assert told(prefill) == {
        "prepare": 1.0, "bootstrap": 2.0, "alloc": 0.5, "queue": 1.5, "prefill": 4.0, "transfer": 7.0,
    }  # fmt: skip
    assert (prefill.wall_s, prefill.first_token_s) == (16.0, 9.0)
    decode = partition("decode", marks(**DECODE), 999.0)
    assert told(decode) == {
        "prepare": 1.0, "bootstrap": 2.0, "alloc": 3.0, "transfer": 10.0, "queue": 1.0, "decode": 13.0,
    }  # fmt: skip
    assert (decode.wall_s, decode.first_token_s) == (30.0, 17.5)
    for role in ("colocated", "local"):
        parts = partition(role, marks(**COLOCATED), 999.0)
        assert told(parts) == {"prepare": 1.0, "queue": 3.0, "prefill": 5.0, "decode": 11.0}
        assert (parts.wall_s, parts.first_token_s) == (20.0, 9.0)


@pytest.mark.parametrize(
    ("role", "full"), [("prefill", PREFILL), ("decode", DECODE), ("colocated", COLOCATED)]
)
def test_a_request_that_ended_in_a_stage_has_none_behind_it(role: Role, full: dict[str, float]) -> None:
    whole = told(partition(role, marks(**full), 0.0))
    order = {
        "prefill": ["prepare", "bootstrap", "alloc", "queue", "prefill", "transfer"],
        "decode": ["prepare", "bootstrap", "alloc", "transfer", "queue", "decode"],
        "colocated": ["prepare", "queue", "prefill", "decode"],
    }[role]
    assert set(whole) == set(order)
    for i, stage in enumerate(order[:-1]):
        so_far = 100.0 + sum(whole[name] for name in order[:i])
        kept = {name: mark for name, mark in full.items() if 100 < mark <= so_far}
        parts = partition(role, marks(**kept), so_far + 0.25)
        assert told(parts) == {name: whole[name] for name in order[:i]} | {stage: 0.25}
        assert parts.first_token_s is None


def test_time_of_a_mark_that_was_skipped_is_in_the_next_stage() -> None:
    without = {name: mark for name, mark in DECODE.items() if name != "bootstrap_done_time"}
    assert told(partition("decode", marks(**without), 0.0)) == {
        "prepare": 1.0, "alloc": 5.0, "transfer": 10.0, "queue": 1.0, "decode": 13.0,
    }  # fmt: skip


def test_prefilled_before_its_bootstrap_was_done() -> None:
    """optimistic_prefill_attempts: it left the bootstrap queue; the rest of that wait is in the transfer."""
    early = marks(**PREFILL | {"bootstrap_done_time": 110.0})
    assert told(partition("prefill", early, 0.0)) == {
        "prepare": 1.0, "bootstrap": 2.5, "alloc": 0.0, "queue": 1.5, "prefill": 4.0, "transfer": 7.0,
    }  # fmt: skip


def test_a_retraction_adds_a_wait_and_hides_none() -> None:
    again = DECODE | {
        "wait_queue_entry_time": 120.0,
        "last_forward_entry_time": 124.0,
        "queue_duration_s": 5.0,
    }
    assert told(partition("decode", marks(**again), 0.0, first_wait_s=116.0)) == {
        "prepare": 1.0, "bootstrap": 2.0, "alloc": 3.0, "transfer": 10.0, "queue": 1.0, "requeue": 4.0,
        "decode": 9.0,
    }  # fmt: skip
    waits = DECODE | {"wait_queue_entry_time": 120.0, "last_forward_entry_time": 0.0, "completion_time": 0.0}
    assert told(partition("decode", marks(**waits), 127.0, first_wait_s=116.0))["requeue"] == 7.0


def test_finished_with_the_token_that_came_with_its_kv() -> None:
    """set_quick_finish_time overwrites forward_entry_time with the end."""
    quick = marks(**DECODE | {"forward_entry_time": 118.0, "completion_time": 118.0})
    parts = partition("decode", quick, 0.0)
    assert (told(parts)["queue"], told(parts)["decode"]) == (1.0, 1.0)


mark_values = st.one_of(st.just(0.0), st.floats(50.0, 200.0))


@st.composite
def any_marks(draw: Any) -> SimpleNamespace:
    found = {name: draw(mark_values) for name in NAMES}
    found["scheduler_recv_time"] = draw(st.floats(90.0, 110.0))
    found["queue_duration_s"] = draw(st.floats(0.0, 500.0))
    return SimpleNamespace(**found)


@given(role=st.sampled_from(ROLES), found=any_marks(), end=st.floats(0.0, 300.0), first=mark_values)
def test_stages_always_add_up_and_none_is_negative(
    role: Role, found: SimpleNamespace, end: float, first: float
) -> None:
    parts = partition(role, found, end, first)
    stages = told(parts)
    assert all(seconds >= 0.0 for seconds in stages.values())
    assert sum(stages.values()) == pytest.approx(parts.wall_s, abs=1e-6)
    assert parts.wall_s == max(0.0, (found.completion_time or end) - found.scheduler_recv_time)
    assert parts.first_token_s is None or 0.0 <= parts.first_token_s <= parts.wall_s
