"""Messages over one TCP connection: 4 bytes length (big-endian), then msgpack."""

import contextlib
import errno
import select
import socket
import struct
import threading
import time
from typing import Any, Generic, Self, TypeVar

import msgspec

from kvferry.integrations.handoff.messages import FRAME_BYTES, Message
from kvferry.integrations.transports.errors import DeadlinePassed, PeerGone, Refused

__all__ = ["Channel", "connect"]

LENGTH = struct.Struct(">I")
# A host that is gone is noticed after 5 + 3 * 2 s without traffic, and after as long with some.
IDLE_S, BETWEEN_S, PROBES = 5, 2, 3
# Messages are small: a peer that has not read the socket's buffer empty by then is stopped.
SEND_TIMEOUT_S = 10

Incoming = TypeVar("Incoming", bound=Message)


class Channel(Generic[Incoming]):
    """One end of a connection. Any thread may send; one thread receives; any may close.

    `incoming`: the type, or union of types, of what may arrive (`ToDestination`, `ToSource`).
    """

    def __init__(self, connection: socket.socket, incoming: Any) -> None:
        connection.setblocking(True)
        _notice_the_dead(connection)
        self._socket = connection
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder()
        self._arrived = bytearray()
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        self._closed = False

    def send(self, message: Message, patience_s: float | None = None) -> None:
        """Raises `PeerGone` where the connection is gone or the peer has stopped reading it, `Refused` for
        a message above `FRAME_BYTES`; nothing is sent then and the connection stays good.

        `patience_s`: who sends will not wait for longer until a peer that has left the socket's buffer full
        reads on; the connection ends then.
        """
        if not self._sending.acquire(timeout=-1.0 if patience_s is None else patience_s):
            self._shut()  # which wakes who waits in there
            raise PeerGone(f"the connection is gone: it took nothing for {patience_s:g} s")
        try:
            body = self._encoder.encode(message)
            if len(body) > FRAME_BYTES:
                raise Refused(f"a {type(message).__name__} of {len(body)} bytes, at most {FRAME_BYTES} go")
            if self._closed:
                raise PeerGone("this connection is closed")
            if patience_s is not None and not self._polled(select.POLLOUT, patience_s):
                self._shut()
                raise PeerGone(f"the connection is gone: it took nothing for {patience_s:g} s")
            try:
                self._socket.sendall(LENGTH.pack(len(body)) + body)
            except OSError as error:
                # Part of the frame may be out: nothing that follows could be read.
                self._shut()
                raise PeerGone(f"the connection is gone: {_told(error)}") from error
        finally:
            self._sending.release()

    def receive(self, deadline_s: float | None = None) -> Incoming:
        """The next message, waited for at most `deadline_s` seconds (None: as long as it takes).

        Raises `PeerGone` at the end of the connection, `DeadlinePassed`, and `Refused` for a frame that is
        too long or is no message of this side's. The connection is good after `DeadlinePassed` only.
        """
        end_s = None if deadline_s is None else time.monotonic() + deadline_s
        with self._receiving:
            self._gather(LENGTH.size, end_s)
            (length,) = LENGTH.unpack_from(self._arrived)
            if length > FRAME_BYTES:
                raise Refused(f"a frame of {length} bytes, at most {FRAME_BYTES} may come")
            end = LENGTH.size + length
            self._gather(end, end_s)
            body = bytes(memoryview(self._arrived)[LENGTH.size : end])
            del self._arrived[:end]
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # the last: nested deeply
            raise Refused(f"a frame that is no message: {error}") from error

    def close(self) -> None:
        """End the connection; who waits in `send` or `receive` gets `PeerGone`. Again does nothing."""
        self._shut()
        with self._sending, self._receiving:
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _gather(self, nbytes: int, end_s: float | None) -> None:
        while len(self._arrived) < nbytes:
            self._arrived += self._more(end_s)

    def _more(self, end_s: float | None) -> bytes:
        try:
            if end_s is not None and not self._polled(select.POLLIN, max(0.0, end_s - time.monotonic())):
                raise DeadlinePassed("no answer before the deadline")
            more = self._socket.recv(64 * 1024)
        except (OSError, ValueError) as error:  # ValueError: poll on a socket that was closed
            raise PeerGone(f"the connection is gone: {_told(error)}") from error
        if not more:
            raise PeerGone("this connection is closed" if self._closed else "the peer closed the connection")
        return more

    def _polled(self, what: int, wait_s: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, what)
        return bool(poll.poll(wait_s * 1e3))

    def _shut(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):  # the peer was faster
            self._socket.shutdown(socket.SHUT_RDWR)


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connection, at most `timeout_s` seconds from now; raises `PeerGone` where nobody answers."""
    try:
        return socket.create_connection((host, port), timeout=timeout_s)
    except OSError as error:
        raise PeerGone(f"{host}:{port} does not answer: {_told(error)}") from error


def _notice_the_dead(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_TIMEOUT_S, 0))
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        dead_ms = (IDLE_S + PROBES * BETWEEN_S) * 1000
        for option, value in (
            (socket.TCP_NODELAY, 1),
            (socket.TCP_KEEPIDLE, IDLE_S),
            (socket.TCP_KEEPINTVL, BETWEEN_S),
            (socket.TCP_KEEPCNT, PROBES),
            (socket.TCP_USER_TIMEOUT, dead_ms),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EAGAIN:
        return f"it took nothing for {SEND_TIMEOUT_S} s"
    return str(error) or type(error).__name__
