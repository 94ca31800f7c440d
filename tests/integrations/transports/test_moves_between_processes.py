import numpy as np
import pytest

from kvferry.integrations.transports.base import Batch, State
from kvferry.integrations.transports.errors import BadRange, Cancelled

KIB = 1024


def test_scattered_blocks_all_arrive_and_the_notice_after_them(way):
    process = way.process
    peer = way.transport.connect("decode", process.metadata)
    way.peer = peer
    batch = way.scatter(process, [4 * KIB, 16 * KIB, 64 * KIB], 64 * KIB**2, 1, notice=b"\x00layer 3\xff")
    measured = way.transport.submit(peer, batch).wait(60)
    assert way.arrived(process, batch) == len(batch)
    assert process.notices(1) == [b"\x00layer 3\xff"]
    assert (measured.moved_bytes, measured.descriptors) == (batch.moved_bytes, len(batch))
    assert measured.concurrency == 1
    assert measured.first_contact_s > 0
    assert measured.total_s >= measured.wire_s + measured.post_s > 0

    again = way.scatter(process, [4 * KIB], 8 * KIB**2, 2)
    measured = way.transport.submit(peer, again).wait(60)
    assert way.arrived(process, again) == len(again)
    assert (measured.registration_s, measured.first_contact_s) == (0, 0)


def test_moves_to_one_peer_at_once_arrive_in_order(way):
    process, peer = way.process, way.peer
    whole = way.scatter(process, [64 * KIB], 64 * KIB**2, 3)
    layers = [
        Batch(part.src_addresses, part.dst_addresses, part.nbytes, b"%d" % first)
        for first in range(0, len(whole), 128)
        for part in [whole.part(first, first + 128)]
    ]
    moves = [way.transport.submit(peer, layer) for layer in layers]
    assert max(move.wait(60).concurrency for move in moves) > 1
    assert way.arrived(process, whole) == len(whole)
    assert sorted(process.notices(len(layers)), key=int) == [layer.notice for layer in layers]


def test_20000_descriptors_at_once(way):
    process, peer = way.process, way.peer
    batch = way.scatter(process, [2 * KIB], 20_000 * 2 * KIB, 4)
    assert len(batch) == 20_000
    assert way.transport.submit(peer, batch).wait(60).descriptors == 20_000
    assert way.arrived(process, batch) == 20_000


def test_a_range_outside_the_regions_is_named_and_nothing_is_written(way):
    process, peer = way.process, way.peer
    good = way.scatter(process, [4 * KIB], 32 * KIB, 5)
    stranger = np.zeros(4 * KIB, np.uint8)
    for side, addresses, wrong in [
        ("source", good.src_addresses, stranger.ctypes.data),
        ("destination", good.dst_addresses, 4 * KIB),
        ("destination", good.dst_addresses, process.address + process.memory.pool.size - 1),
    ]:
        changed = addresses.copy()
        changed[3] = wrong
        bad = (
            Batch(changed, good.dst_addresses, good.nbytes)
            if side == "source"
            else Batch(good.src_addresses, changed, good.nbytes)
        )
        with pytest.raises(BadRange, match=f"descriptor 3: {side} {wrong:#x}") as raised:
            way.transport.submit(peer, bad)
        assert not raised.value.may_still_write
    assert not process.memory.pool.any()
    way.transport.submit(peer, good).wait(60)
    assert way.arrived(process, good) == len(good)


def test_a_cancelled_move_says_so_and_the_next_one_arrives(way):
    process, peer = way.process, way.peer
    batch = way.scatter(process, [2 * KIB], 20_000 * 2 * KIB, 6)
    move = way.transport.submit(peer, batch)
    move.cancel()
    assert move.state is State.CANCELLED
    with pytest.raises(Cancelled):
        move.wait(60)
    assert move.measurement.descriptors < len(batch)
    good = way.scatter(process, [64 * KIB], KIB**2, 7)
    way.transport.submit(peer, good).wait(60)
    assert not move.may_still_write  # what was under way had to land before the next move's end
    way.transport.submit(peer, good).wait(60)
    assert way.arrived(process, good) == len(good)
