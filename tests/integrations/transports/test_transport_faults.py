import contextlib
import gc
import os
import signal
import threading
import time

import pytest

from kvferry.integrations.transports.base import Batch, Region, State
from kvferry.integrations.transports.errors import DeadlinePassed, PeerGone, Refused, Wedged
from kvferry.integrations.transports.registry import open_transport

KIB = 1024
MOONCAKES_OWN_TIMEOUT_S = 5
CONNECTING_S = 5
FLOOD = 8192  # descriptors; the lane to a peer holds 2,048


def good_move(way, peer, process, seed):
    batch = way.scatter(process, [16 * KIB], KIB**2, seed)
    way.transport.submit(peer, batch).wait(30)
    return way.arrived(process, batch) == len(batch)


def test_a_killed_peer_fails_its_moves_and_no_other_and_may_come_back(way):
    process = way.start("victim")
    peer = way.transport.connect("victim", process.metadata)
    assert good_move(way, peer, process, 1)
    batch = way.scatter(process, [4 * KIB], 60 * KIB**2, 2)
    moves = [way.transport.submit(peer, batch) for _ in range(4)]
    process.send(signal.SIGKILL)
    if way.name == "local":  # shared memory outlives its owner
        moves[-1].wait(30)
    else:
        with pytest.raises((PeerGone, Wedged)):
            moves[-1].wait(30)
        first_failed = next(move for move in moves if move.state is State.FAILED)
        assert first_failed.measurement.descriptors < len(batch)
        assert first_failed.may_still_write
    assert good_move(way, way.peer, way.process, 3)
    with pytest.raises(PeerGone):
        way.transport.connect("victim", process.metadata)
    again = way.start("victim")
    assert good_move(way, way.transport.connect("victim", again.metadata), again, 4)
    with pytest.raises(PeerGone, match="replaced"):
        way.transport.submit(peer, batch)


def test_a_stopped_peer_fails_the_move_at_our_deadline(way):
    if way.name == "local":
        pytest.skip("shared memory can be written while its owner is stopped")
    process = way.start("sleeper")
    peer = way.transport.connect("sleeper", process.metadata)
    assert good_move(way, peer, process, 1)
    batch = way.scatter(process, [64 * KIB], 60 * KIB**2, 3, notice=b"landed")
    process.send(signal.SIGSTOP)
    move = way.transport.submit(peer, batch)
    began_s = time.monotonic()
    if way.name == "nixl-cma":  # the kernel copies into a stopped process: then it is really there
        move.wait(20.0)
        assert way.arrived(process, batch) == len(batch)
    else:
        with pytest.raises(DeadlinePassed) as late:
            move.wait(1.0)
        assert 1.0 <= time.monotonic() - began_s < MOONCAKES_OWN_TIMEOUT_S
        assert late.value.may_still_write
        assert move.state is State.LATE
    assert good_move(way, way.peer, way.process, 4)
    process.send(signal.SIGCONT)
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        try:
            if good_move(way, peer, process, 5):
                break
        except (DeadlinePassed, PeerGone, Wedged):
            time.sleep(0.1)
    else:
        raise AssertionError("no move arrived after the peer went on")


def test_connecting_to_a_stopped_peer_ends_by_itself_and_holds_up_no_other(way):
    if way.name == "local":
        pytest.skip("shared memory can be written while its owner is stopped")
    process = way.start("sleeper")
    process.send(signal.SIGSTOP)
    ended = {}

    def connect():
        began_s = time.monotonic()
        try:
            way.transport.connect("sleeper", process.metadata)
        except PeerGone as error:
            ended["error"] = error
        ended["took_s"] = time.monotonic() - began_s

    connecting = threading.Thread(target=connect)
    connecting.start()
    moved = 0
    while connecting.is_alive():
        assert good_move(way, way.peer, way.process, moved)
        moved += connecting.is_alive()
    assert moved > 1
    assert "answer" in str(ended["error"])
    assert ended["took_s"] < 4 * CONNECTING_S
    process.send(signal.SIGCONT)
    peer = way.transport.connect("sleeper", process.metadata)
    assert good_move(way, peer, process, 1)


def test_a_flooded_engine_wedges_and_the_next_move_has_a_fresh_one(way, monkeypatch):
    if way.name != "mooncake":
        pytest.skip("only Mooncake's engine wedges")
    flood = way.scatter(way.process, [4 * KIB], FLOOD * 4 * KIB, 1)
    transport = open_transport("mooncake", "flooding")
    transport.register((Region(way.memory.address, way.memory.pool.size),))
    try:
        peer = transport.connect("decode", way.process.metadata)
        with monkeypatch.context() as patched:
            patched.setattr(type(transport), "part_descriptors", FLOOD)
            flooding = transport.submit(peer, flood)
        with contextlib.suppress(Wedged):
            flooding.wait(30)
            pytest.skip(f"this Mooncake takes {FLOOD} descriptors at once")
        assert flooding.may_still_write
        batch = way.scatter(way.process, [4 * KIB], FLOOD * 4 * KIB, 2)
        # Elsewhere: what is left of the flood still lands.
        batch = Batch(batch.src_addresses, batch.dst_addresses + FLOOD * 4 * KIB, batch.nbytes)
        assert transport.submit(peer, batch).wait(60).descriptors == len(batch)
        assert transport._lanes[peer]._engine is not transport._first
        assert way.arrived(way.process, batch) == len(batch)
    finally:
        transport.close()


def test_a_wedged_engine_is_replaced_by_a_fresh_one(way, monkeypatch):
    if way.name != "mooncake":
        pytest.skip("only Mooncake's engine wedges")
    first = way.transport._lanes[way.peer]
    monkeypatch.setattr(first, "_engine", Refusing())
    batch = way.scatter(way.process, [16 * KIB], KIB**2, 1)
    with pytest.raises(Wedged, match="answers") as raised:
        way.transport.submit(way.peer, batch).wait(30)
    assert raised.value.may_still_write
    assert good_move(way, way.peer, way.process, 2)
    assert way.transport._lanes[way.peer]._engine is not way.transport._first
    first.join(10)
    assert not first.is_alive()


class Refusing:
    def batch_transfer_sync_write(self, *_):
        return -1


def tasks_and_sockets():
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("kvferry-")]
    return len(os.listdir("/proc/self/task")), sum(link.startswith("socket:") for link in links), ours


def test_closing_leaves_no_thread_and_no_socket(way):
    process = way.process

    def use_and_close():
        transport = open_transport(way.transport.name, "brief")
        transport.register((Region(way.memory.address, way.memory.pool.size),))
        peer = transport.connect("decode", process.metadata)
        batch = way.scatter(process, [4 * KIB], 8 * KIB**2, 1)
        transport.submit(peer, batch).wait(30)
        running = transport.submit(peer, batch)
        transport.close()
        transport.close()
        assert running.state is not State.RUNNING
        with pytest.raises(Refused, match="closed"):
            transport.submit(peer, Batch(batch.src_addresses, batch.dst_addresses, batch.nbytes))

    use_and_close()  # what a library keeps for the life of the process it has by now
    gc.collect()
    tasks, sockets, ours = tasks_and_sockets()
    for _ in range(3):
        use_and_close()
    gc.collect()
    end_s = time.monotonic() + 5
    while (now := tasks_and_sockets()) > (tasks, sockets, ours) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert now[2] == ours
    assert now[0] <= tasks
    assert now[1] <= sockets


def test_idle_takes_under_two_percent_of_a_core(way):
    assert good_move(way, way.peer, way.process, 1)
    assert way.process.ask("idle") < 0.02
