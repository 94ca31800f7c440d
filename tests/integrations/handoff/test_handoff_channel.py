"""Messages over one connection: whole or not at all, and nobody waits for ever."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kvferry.integrations.handoff import channel as channels
from kvferry.integrations.handoff import messages as m
from kvferry.integrations.handoff.channel import SEND_TIMEOUT_S, Channel, connect
from kvferry.integrations.transports.errors import DeadlinePassed, PeerGone, Refused
from kvferry.models.moves.pool_spec import PoolSpec
from kvferry.policy.layout import LayoutOrder

SPEC = PoolSpec(2, 4, 8, 16, 4, "bfloat16", LayoutOrder.PAGE_FIRST, first_head=4)
TO_DESTINATION = [
    m.Hello(1, "source", (SPEC, SPEC), (1,)),
    m.Begin(0, 2**63 - 1, 100, True),
    m.Landed(3, 0, 1, b"\0" * 16, b"\x01" * 8),
    m.Want(3, 0),
    m.Staged(3, 1, 0, 1, 2, 4, 16, 84, "bfloat16", b"abc", b""),
    m.End(3),
    m.Failed(3, "näher", False),
    m.Drained(3),
]
TO_SOURCE = [
    m.Welcome(1, "destination", "local", b"\xff\0", (SPEC,), (0,), 4, 2**20),
    m.Go(3, [5, 2, 9], 7, (b"", b"\0" * 4), True),
    m.No(m.NO_MOVE, "no"),
    m.Slot(3, 1, 2),
    m.Scattered(3, 1, 0.5, 0.25, 0.125),
    m.Complete(3, 0.5),
    m.Cancel(3, "late"),
]


@pytest.fixture
def raw_and_channel() -> Iterator[tuple[socket.socket, Channel[Any]]]:
    """The other end without a `Channel`, and the destination's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        raw = connect("127.0.0.1", server.getsockname()[1], 5.0)
        accepted, _ = server.accept()
    here: Channel[Any] = Channel(accepted, m.ToDestination)
    yield raw, here
    here.close()
    raw.close()


def frame(message: m.Message) -> bytes:
    body = msgspec.msgpack.encode(message)
    return struct.pack(">I", len(body)) + body


def send_often(channel: Channel[Any], message: m.Message, times: int) -> None:
    for _ in range(times):
        channel.send(message)
        time.sleep(0.001)


@pytest.mark.parametrize("message", TO_DESTINATION, ids=lambda one: type(one).__name__)
def test_what_a_source_says_arrives_as_it_was_said(raw_and_channel, message):
    raw, here = raw_and_channel
    there: Channel[Any] = Channel(raw, m.ToSource)
    there.send(message)
    assert here.receive(5.0) == message


@pytest.mark.parametrize("message", TO_SOURCE, ids=lambda one: type(one).__name__)
def test_what_a_destination_says_arrives_as_it_was_said(raw_and_channel, message):
    raw, here = raw_and_channel
    there: Channel[Any] = Channel(raw, m.ToSource)
    here.send(message)
    assert there.receive(5.0) == message


def test_frames_come_in_any_pieces(raw_and_channel):
    raw, here = raw_and_channel
    everything = b"".join(map(frame, TO_DESTINATION))

    def trickle() -> None:
        for byte in everything:
            raw.sendall(bytes([byte]))

    thread = threading.Thread(target=trickle)
    thread.start()
    assert [here.receive(5.0) for _ in TO_DESTINATION] == TO_DESTINATION
    thread.join()
    raw.sendall(everything)
    assert [here.receive(5.0) for _ in TO_DESTINATION] == TO_DESTINATION


def test_a_deadline_within_a_frame_loses_nothing(raw_and_channel):
    raw, here = raw_and_channel
    sent = frame(m.Begin(1, 2, 3, False))
    for cut in (0, 2, 4, len(sent) - 1):
        raw.sendall(sent[:cut])
        with pytest.raises(DeadlinePassed):
            here.receive(0.02)
        raw.sendall(sent[cut:])
        assert here.receive(5.0) == m.Begin(1, 2, 3, False)


def test_a_frame_that_is_too_long_is_not_waited_for(raw_and_channel):
    raw, here = raw_and_channel
    raw.sendall(struct.pack(">I", m.FRAME_BYTES + 1))
    with pytest.raises(Refused, match="frame of 16777217 bytes"):
        here.receive(5.0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"not msgpack",
        msgspec.msgpack.encode(["Nobody", 1]),
        msgspec.msgpack.encode(["Want", 1]),
        msgspec.msgpack.encode(["Want", 1, "two"]),
        msgspec.msgpack.encode(["End", 2**70 // 2**7, 0])[:-1],
        msgspec.msgpack.encode(["Hello", 1, "a", [[0] * 8], [0]]),
        msgspec.msgpack.encode(TO_SOURCE[1]),
        b"\x92\xa3End\xa1\xff",
    ],
)
def test_a_frame_that_is_no_message_is_refused(raw_and_channel, body):
    raw, here = raw_and_channel
    raw.sendall(struct.pack(">I", len(body)) + body)
    with pytest.raises(Refused, match="no message"):
        here.receive(5.0)


def test_a_message_that_is_too_long_is_not_sent_and_the_connection_stays_good(raw_and_channel):
    raw, here = raw_and_channel
    there: Channel[Any] = Channel(raw, m.ToSource)
    with pytest.raises(Refused, match="a Landed of"):
        there.send(m.Landed(1, 0, 0, bytes(m.FRAME_BYTES)))
    large = m.Landed(1, 0, 0, bytes(m.FRAME_BYTES - 100))
    sender = threading.Thread(target=there.send, args=(large,))
    sender.start()
    assert here.receive(10.0) == large
    sender.join()


@pytest.mark.parametrize("cut", [0, 3, 6])
def test_the_end_of_the_connection(raw_and_channel, cut):
    raw, here = raw_and_channel
    raw.sendall(frame(m.End(1)) + frame(m.End(2))[:cut])
    raw.close()
    assert here.receive(5.0) == m.End(1)
    with pytest.raises(PeerGone):
        here.receive(5.0)
    with pytest.raises(PeerGone):
        send_often(here, m.Complete(1), 1000)


def test_a_reset(raw_and_channel):
    raw, here = raw_and_channel
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()
    with pytest.raises(PeerGone):
        here.receive(5.0)


@pytest.mark.parametrize("deadline_s", [None, 60.0])
def test_closing_wakes_who_receives(raw_and_channel, deadline_s):
    _, here = raw_and_channel
    said: list[Exception] = []

    def receive() -> None:
        try:
            here.receive(deadline_s)
        except PeerGone as error:
            said.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    time.sleep(0.1)
    here.close()
    thread.join(5.0)
    assert not thread.is_alive()
    assert len(said) == 1
    for use in (lambda: here.send(m.Complete(1)), lambda: here.receive(1.0), here.receive):
        with pytest.raises(PeerGone):
            use()
    here.close()


def test_a_peer_that_reads_no_more_does_not_hold_up_its_sender_for_ever(monkeypatch):
    monkeypatch.setattr(channels, "SEND_TIMEOUT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        stopped = connect("127.0.0.1", server.getsockname()[1], 5.0)
        accepted, _ = server.accept()
    sender: Channel[Any] = Channel(accepted, m.ToDestination)
    with pytest.raises(PeerGone, match="took nothing for 1 s"):
        send_often(sender, m.Cancel(1, "x" * 2**20), 100)
    with pytest.raises(PeerGone):
        sender.send(m.Complete(1))
    sender.close()
    stopped.close()


def test_closing_wakes_who_sends(raw_and_channel):
    _, here = raw_and_channel
    done = threading.Event()

    def send() -> None:
        try:
            send_often(here, m.Cancel(1, "x" * 2**20), 100)
        except PeerGone:
            done.set()

    threading.Thread(target=send, daemon=True).start()
    time.sleep(0.2)  # until the buffers are full; nobody reads the other end
    here.close()
    assert done.wait(5.0)


def test_threads_that_send_at_once_do_not_mix_their_frames(raw_and_channel):
    raw, here = raw_and_channel
    there: Channel[Any] = Channel(raw, m.ToSource)

    def send(move: int) -> None:
        for ticket in range(50):
            there.send(m.Landed(move, ticket, 0, bytes([move]) * 5000))

    threads = [threading.Thread(target=send, args=(move,)) for move in range(8)]
    for thread in threads:
        thread.start()
    heard = [here.receive(5.0) for _ in range(8 * 50)]
    for thread in threads:
        thread.join()
    assert all(one.checksums == bytes([one.move]) * 5000 for one in heard)
    for move in range(8):
        assert [one.src_rank for one in heard if one.move == move] == list(range(50))


def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(PeerGone, match=f"127.0.0.1:{port} does not answer"):
        connect("127.0.0.1", port, 5.0)


def test_a_host_that_is_gone_would_be_noticed(raw_and_channel):
    _, here = raw_and_channel
    held = here._socket
    assert held.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle_s = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
    between_s = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
    probes = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
    assert idle_s + between_s * probes <= 15
    assert 0 < held.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 15_000


def test_who_has_no_patience_ends_a_connection_that_another_waits_for():
    ours, theirs = socket.socketpair()
    channel: Channel[Any] = Channel(ours, m.ToDestination)
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(bytes(65536), socket.MSG_DONTWAIT)
    ended = []

    def patient() -> None:
        with pytest.raises(PeerGone):
            channel.send(m.End(1))
        ended.append(True)

    waiting = threading.Thread(target=patient)
    waiting.start()
    while not channel._sending.locked():
        time.sleep(0.001)
    began_s = time.monotonic()
    with pytest.raises(PeerGone, match="took nothing"):
        channel.send(m.End(2), patience_s=0.01)
    waiting.join()
    assert ended
    assert time.monotonic() - began_s < SEND_TIMEOUT_S / 2
    channel.close()
    theirs.close()
