"""Counting at the transports' calls, with chunks through SGLang's queue protocol and fake libraries."""

import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvferry.integrations.sglang.plugin.telemetry.meter import Meter
from kvferry.integrations.sglang.plugin.telemetry.mooncake import MooncakeCalls
from kvferry.integrations.sglang.plugin.telemetry.moves import MAX_ROOMS, Moves
from kvferry.integrations.sglang.plugin.telemetry.nixl import NixlCalls


@dataclass
class Chunk:
    room: int


@pytest.fixture
def moves() -> Moves:
    return Moves()


def take(moves: Moves, room: int) -> None:
    chunk = Chunk(room)
    moves.queued(None, chunk)
    moves.taken(chunk, None)


def call(calls: Any, name: str) -> Any:
    return next(hook.function for hook in calls.hooks() if hook.target.endswith(name))


def test_mooncake_blocks_and_metadata_apart(moves: Moves) -> None:
    calls = MooncakeCalls(moves, Meter())
    transfer, aux = call(calls, "._transfer_data"), call(calls, ".send_aux")
    for _ in range(2):
        take(moves, 7)
        assert transfer(lambda *_: 0, None, "s", [(0, 0, 100), (0, 0, 28)]) == 0
    assert aux(lambda: transfer(lambda *_: -1, None, "s", [(0, 0, 5)])) == -1
    transfer(lambda *_: 0, None, "s", [])  # nothing to move is no call
    move = moves.end(7)
    assert move is not None
    told = move.transfer(ranks=2)
    assert told is not None
    assert (told.transport, told.bytes, told.descriptors, told.calls) == ("mooncake", 256, 4, 2)
    assert (told.chunks, told.aux_bytes, told.ranks) == (2, 5, 2)
    assert told.span_s >= told.busy_s > 0
    assert moves.end(7) is None


def test_what_the_library_raises_passes_and_aux_is_left(moves: Moves) -> None:
    calls = MooncakeCalls(moves, Meter())
    take(moves, 1)

    def fails(*_: Any) -> int:
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        call(calls, ".send_aux")(fails)
    call(calls, "._transfer_data")(lambda *_: 0, None, "s", [(0, 0, 3)])
    move = moves.end(1)
    assert move is not None
    assert (move.bytes, move.aux_bytes) == (3, 0)


class Agent:
    """As much of a NIXL agent as is wrapped."""

    def make_prepped_xfer(self, *args: Any) -> str:
        return "prepared"

    def initialize_xfer(self, *args: Any) -> str:
        return "listed"


class Listed:
    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def descCount(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> tuple[int, int, int]:
        return (0, self.sizes[i], 0)


@pytest.fixture
def nixl(moves: Moves) -> tuple[NixlCalls, Any]:
    calls, manager = NixlCalls(moves, Meter()), SimpleNamespace(agent=Agent())
    call(calls, ".__init__")(None, manager)
    return calls, manager


def runs(*rows: tuple[int, int]) -> np.ndarray:
    return np.array([(0, length, 0, length, count) for length, count in rows], dtype=np.uint64)


def test_nixl_bytes_are_those_of_the_descriptors_chosen(moves: Moves, nixl: tuple[NixlCalls, Any]) -> None:
    calls, manager = nixl
    even, uneven = object(), object()
    call(calls, "._prep_xfer_dlist")(even, manager, "", runs((512, 10), (512, 10)), "DRAM")
    call(calls, "._prep_xfer_dlist")(uneven, manager, "", runs((512, 10), (64, 10)), "DRAM")
    call(calls, "._prep_xfer_dlist")(object(), manager, "peer", runs((9, 9)), "DRAM")
    take(moves, 3)
    assert manager.agent.make_prepped_xfer("WRITE", even, np.array([0, 9, 10]), None, None) == "prepared"
    manager.agent.make_prepped_xfer("WRITE", uneven, np.array([0, 9, 10, 19]), None, None)
    assert manager.agent.initialize_xfer("WRITE", Listed(7, 8), None, "peer") == "listed"
    call(calls, ".send_aux")(lambda: manager.agent.initialize_xfer("WRITE", Listed(100), None, "peer"))
    call(calls, "._await_handles")(lambda *_: time.sleep(0.001), manager, [])
    move = moves.end(3)
    assert move is not None
    told = move.transfer(ranks=1)
    assert told is not None
    assert told.bytes == 3 * 512 + (2 * 512 + 2 * 64) + 15
    assert (told.descriptors, told.calls, told.aux_bytes) == (3 + 4 + 2, 3, 100)
    assert told.transport == "nixl"
    assert told.build_s > 0
    assert told.busy_s > 0


def test_a_counter_that_fails_leaves_nixl_alone(
    moves: Moves, nixl: tuple[NixlCalls, Any], caplog: pytest.LogCaptureFixture
) -> None:
    _, manager = nixl
    take(moves, 3)
    for _ in range(10):
        assert manager.agent.initialize_xfer("WRITE", "no descriptors", None, "peer") == "listed"
    assert len([r for r in caplog.records if r.exc_info]) == 3


def test_threads_count_their_own_requests(moves: Moves) -> None:
    transfer = call(MooncakeCalls(moves, Meter()), "._transfer_data")

    def work(room: int) -> None:
        for _ in range(200):
            take(moves, room)
            transfer(lambda *_: 0, None, "s", [(0, 0, room)])

    threads = [threading.Thread(target=work, args=(room,)) for room in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for room in range(1, 9):
        move = moves.end(room)
        assert move is not None
        assert (move.bytes, move.chunks) == (200 * room, 200)


def test_requests_that_never_end_are_forgotten(moves: Moves) -> None:
    for room in range(MAX_ROOMS + 5):
        take(moves, room)
    assert moves.end(0) is None
    assert moves.end(MAX_ROOMS + 4) is not None


def test_without_a_chunk_nothing_is_counted(moves: Moves) -> None:
    moves.taken(None, None)  # SGLang's sign to end
    moves.taken(SimpleNamespace(room=1), None)  # was queued before the plugin acted
    moves.called("mooncake", 1, 1)
    moves.busy(0.0, 1.0)
    assert moves.end(1) is None
