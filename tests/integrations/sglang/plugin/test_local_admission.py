"""Who is admitted when, on a scheduler of which there is only what local prefill looks at."""

from types import SimpleNamespace as Some
from typing import Any

import pytest

from kvferry.integrations.sglang.plugin.localprefill import intake as intake_module
from kvferry.integrations.sglang.plugin.localprefill.abort import Aborts
from kvferry.integrations.sglang.plugin.localprefill.admission import Admission
from kvferry.integrations.sglang.plugin.localprefill.intake import ROOM, Intake
from kvferry.integrations.sglang.plugin.localprefill.marker import is_local
from kvferry.integrations.sglang.plugin.localprefill.merge import joined
from kvferry.integrations.sglang.plugin.localprefill.state import State
from kvferry.integrations.sglang.plugin.settings import LocalPrefillSettings
from kvferry.integrations.sglang.plugin.wire import LOCAL_MARK

RESERVE = 512


class Prealloc:
    """`free` tokens, and SGLang's formula for what a request needs."""

    num_reserved_decode_tokens = RESERVE

    def __init__(self, free: int) -> None:
        self.free = free
        self.queue: list[Any] = []
        self.retracted_queue: list[Any] = []
        self.scheduler: Any = None
        self.hook: Any = None

    def _allocatable_token_budgets(self, **asked: Any) -> int:
        return int(self.hook(self.free, self, **asked)) if self.hook else self.free

    def _required_admission_tokens(self, req: Any, allocated: int, prefix: int, retractable: int) -> int:
        return allocated + RESERVE


class Batch:
    def __init__(self, *reqs: Any) -> None:
        self.reqs = list(reqs)

    def is_empty(self) -> bool:
        return not self.reqs

    def filter_batch(self, reqs_to_exclude: Any = ()) -> None:
        self.reqs = [req for req in self.reqs if req not in reqs_to_exclude]

    def merge_batch(self, other: "Batch") -> None:
        self.reqs += other.reqs


def request(prompt_tokens: int, rid: str = "a") -> Some:
    return Some(origin_input_ids=[0] * prompt_tokens, output_ids=[], rid=rid, kvferry_local=True)


def world(free: int, *, page: int = 1, max_queue: int = 4) -> tuple[State, Admission, Prealloc]:
    prealloc = Prealloc(free)
    prealloc.scheduler = scheduler = Some(
        disagg_decode_prealloc_queue=prealloc,
        disagg_decode_transfer_queue=Some(queue=[]),
        waiting_queue=[],
        chunked_req=None,
        running_batch=Batch(),
        last_batch=None,
        page_size=page,
        max_running_requests=4,
        max_prefill_tokens=16384,
        chunked_prefill_size=4096,
        max_req_input_len=8000,
    )
    state = State(LocalPrefillSettings(True, 0.05, 0.5, 128, 2048, max_queue))
    state.begin(scheduler)
    admission = Admission(state)
    prealloc.hook = admission.budget
    return state, admission, prealloc


def test_those_that_fit_are_taken_in_order() -> None:
    state, admission, _ = world(free=2500)
    state.queue += [request(500), request(700), request(10), request(10)]
    running = Batch(request(5))
    # 1012 + 1212 leave less than the third one's 522, and nobody overtakes it
    assert admission.local(running) == state.queue[:2]


def test_whole_pages_are_counted() -> None:
    state, admission, _ = world(free=64 + RESERVE - 1, page=64)
    state.queue.append(request(1))
    assert admission.local(Batch(request(5))) == []


def test_nobody_new_while_retracted_requests_wait() -> None:
    state, admission, prealloc = world(free=9000)
    state.queue.append(request(10))
    prealloc.retracted_queue.append(object())
    assert admission.local(Batch()) == []


def test_alone_the_first_goes_to_stocks_own_check() -> None:
    state, admission, prealloc = world(free=100)
    state.queue += [request(10), request(10)]
    assert admission.local(Batch()) == state.queue[:1]
    assert admission.local(Batch(request(1))) == []
    prealloc.scheduler.waiting_queue.append(object())
    assert admission.local(Batch()) == []


def test_at_locals_turn_its_first_ones_need_is_kept_from_split_requests_alone() -> None:
    state, admission, prealloc = world(free=5000)
    assert admission.budget(5000, prealloc, count_retracted=True) == 5000
    state.queue.append(request(1000))
    assert admission.budget(5000, prealloc, count_retracted=True) == 5000 - 1000 - RESERVE
    assert admission.budget(5000, prealloc, count_retracted=False) == 5000  # retracted ones come first
    assert admission.local(Batch(request(1))) == state.queue
    state.share.charge("local", 100, other_waits=True)
    assert admission.budget(5000, prealloc, count_retracted=True) == 5000  # split's turn


def test_what_a_half_prefilled_prompt_still_needs_is_nobody_elses() -> None:
    state, admission, prealloc = world(free=5000)
    chunked = request(1000)
    chunked.kv = Some(kv_allocated_len=128, holds_kv=True)
    chunked.finished = lambda: False
    state.scheduler.chunked_req = chunked
    for retracted in (True, False):
        assert admission.budget(5000, prealloc, count_retracted=retracted) == 5000 - 872
    assert admission.count_active(3, prealloc) == 4


def test_split_waits_for_memory_or_for_a_place() -> None:
    state, admission, prealloc = world(free=5000)
    running = Batch(request(1), request(1))
    assert not admission.split_waits(running)
    prealloc.queue.append(Some(waiting_for_input=False))  # its handshake is not over
    assert not admission.split_waits(running)
    state.scheduler.waiting_queue.append(object())  # two places, one of them for it
    assert not admission.split_waits(running)
    state.scheduler.waiting_queue.append(object())
    assert admission.split_waits(running)
    state.scheduler.waiting_queue.clear()
    prealloc.queue.append(Some(waiting_for_input=True))
    assert admission.split_waits(running)


def test_both_sides_are_charged_what_they_take_from_the_other() -> None:
    state, admission, prealloc = world(free=5000)
    admission.split_admitted(([Some(req=request(100))], []), prealloc)
    assert state.share.contended_tokens == {"local": 0, "split": 0}
    state.queue.append(request(1))
    admission.split_admitted(([Some(req=request(100))], []), prealloc)
    admission.admitted([request(50)], split_waits=True)
    assert state.share.contended_tokens == {"local": 50 + RESERVE, "split": 100 + RESERVE}


def test_a_full_queue_answers_503(monkeypatch: pytest.MonkeyPatch) -> None:
    state, _, _ = world(free=5000, max_queue=1)
    ended: list[tuple[Any, Any]] = []
    monkeypatch.setattr(intake_module, "drop", lambda _, req, reason: ended.append((req.rid, reason)))
    monkeypatch.setattr(intake_module, "resolve", lambda _: lambda req: False)
    state.scheduler._set_or_validate_priority = lambda req: True
    state.scheduler.processed_tokens_counter = 0
    for rid in "ab":
        req = request(10, rid)
        req.time_stats = Some(set_wait_queue_entry_time=lambda: None)
        Intake(state).add(pytest.fail, state.scheduler, req)
    assert [req.rid for req in state.queue] == ["a"]
    assert [(rid, reason["status_code"]) for rid, reason in ended] == [("b", 503)]


def received(host: str | None, room: int | None) -> Some:
    return Some(
        bootstrap_host=host,
        bootstrap_room=room,
        rid="a",
        input_ids=[1],
        sampling_params=Some(beam_width=None),
        session_params=None,
        session_id=None,
        mm_inputs=None,
        input_embeds=None,
        positional_embed_overrides=None,
        lora_id=None,
    )


def taken_in(intake: Intake, given: Some) -> tuple[Any, Any]:
    """The room that SGLang's check sees, and the Req that comes of it."""
    seen: list[Any] = []

    def handle(scheduler: Any, got: Any) -> None:
        seen.append(got.bootstrap_room)
        seen.append(intake.create(make, scheduler, got))

    def make(_: Any, got: Any) -> Some:
        return Some(bootstrap_room=got.bootstrap_room, time_stats=Some(disagg_mode="decode"))

    intake.handle(handle, intake.state.scheduler, given)
    room, req = seen
    return room, req


def test_the_mark_passes_the_check_for_a_room_and_is_then_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    state, _, _ = world(free=5000)
    monkeypatch.setattr(intake_module, "resolve", lambda _: Some(NULL="null"))
    room, req = taken_in(Intake(state), received(LOCAL_MARK, None))
    assert room == ROOM
    assert req.kvferry_local
    assert req.bootstrap_room is None
    assert req.time_stats.disagg_mode == "null"


@pytest.mark.parametrize("room", [None, ROOM, 0, 7])
@pytest.mark.parametrize("host", [LOCAL_MARK, "10.0.0.1", None])
def test_whatever_room_a_client_sends_only_the_mark_makes_a_request_local(
    monkeypatch: pytest.MonkeyPatch, host: str | None, room: int | None
) -> None:
    state, _, _ = world(free=5000)
    monkeypatch.setattr(intake_module, "resolve", lambda _: Some(NULL="null"))
    intake = Intake(state)
    marked = host == LOCAL_MARK and room is None
    taken_in(intake, received(LOCAL_MARK, None))  # the one before leaves nothing behind
    seen, req = taken_in(intake, received(host, room))
    assert is_local(req) is marked
    assert marked or (seen, req.bootstrap_room) == (room, room)


def test_an_abort_by_prefix_takes_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    state, _, _ = world(free=5000)
    ended: list[str] = []
    monkeypatch.setattr(
        "kvferry.integrations.sglang.plugin.localprefill.abort.drop",
        lambda _, req, reason: ended.append(req.rid),
    )
    state.queue += [request(1, "ab"), request(1, "b"), request(1, "abc")]
    aborts = Aborts(state)
    aborts.abort(state.scheduler, Some(abort_all=False, rid="ab", finished_reason=None))
    assert ended == ["ab", "abc"]
    assert not aborts.idle(True, state.scheduler)
    assert aborts.idle(True, state.scheduler, ignore_waiting=True)
    aborts.abort(state.scheduler, Some(abort_all=True, rid="", finished_reason=None))
    assert ended == ["ab", "abc", "b"]
    assert aborts.idle(True, state.scheduler)


def test_joining_keeps_what_is_put_aside_out_and_never_empties_itself() -> None:
    running, batch = Batch("a"), Batch("b", "c")
    assert joined(running, batch, {"c"}) is running
    assert running.reqs == ["a", "b"]
    fresh = Batch("d")
    assert joined(Batch(), fresh, set()) is fresh
    assert joined(fresh, fresh, {"d"}).reqs == ["d"]
    assert joined(running, Batch("e"), {"e"}).reqs == ["a", "b"]
