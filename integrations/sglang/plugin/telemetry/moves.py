"""What was truly moved, per request: counted where a prefill worker calls into the transport.

SGLang's own figures are something else: its latency is not the time on the wire, its bytes are those queued.
"""

import threading
import time
from typing import Any

from kvferry.integrations.sglang.plugin.wire import Transfer

MAX_ROOMS = 4096  # requests whose counters wait for their end


class Move:
    """One request's counters. Its chunks are all handled by one transfer thread, which alone writes here."""

    __slots__ = (
        "aux_bytes", "build_s", "busy_s", "bytes", "calls", "chunks", "descriptors", "first_s", "last_s",
        "transport", "wait_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.transport = ""
        self.chunks = self.calls = self.descriptors = self.bytes = self.aux_bytes = 0
        self.wait_s = self.build_s = self.busy_s = 0.0
        self.first_s = self.last_s = 0.0

    def transfer(self, ranks: int, received_s: float | None = None) -> Transfer | None:
        """As a record; None when no call was seen. `received_s`: when the scheduler got the request."""
        if not self.transport:
            return None
        return Transfer(
            transport=self.transport,
            bytes=self.bytes,
            descriptors=self.descriptors,
            chunks=self.chunks,
            calls=self.calls,
            wait_s=round(self.wait_s, 6),
            build_s=round(self.build_s, 6),
            busy_s=round(self.busy_s, 6),
            span_s=round(max(0.0, self.last_s - self.first_s), 6),
            aux_bytes=self.aux_bytes,
            ranks=ranks,
            done_s=None if received_s is None else round(max(0.0, self.last_s - received_s), 6),
        )


class _Thread(threading.local):
    """What a transfer thread is working on."""

    move: Move | None = None
    aux = False


class Moves:
    """All requests' counters, by bootstrap room."""

    def __init__(self) -> None:
        self._rooms: dict[int, Move] = {}
        self._thread = _Thread()

    def queued(self, _queue: Any, item: Any) -> None:
        """BEFORE FastQueue.put: a chunk waits from now on."""
        if item is not None and hasattr(item, "room"):
            item.kvferry_put_s = time.perf_counter()

    def taken(self, item: Any, _queue: Any) -> None:
        """AFTER FastQueue.get: this thread works on that chunk's request until it asks for the next."""
        self._thread.move, self._thread.aux = None, False
        put_s = getattr(item, "kvferry_put_s", 0.0)
        if not put_s:
            return
        move = self._rooms.get(item.room)
        if move is None:
            while len(self._rooms) >= MAX_ROOMS:  # of requests that never came to a known end
                self._rooms.pop(next(iter(self._rooms)), None)
            move = self._rooms[item.room] = Move()
            move.first_s = put_s
        move.chunks += 1
        move.wait_s += time.perf_counter() - put_s
        self._thread.move = move

    def aux(self, on: bool) -> None:
        """Whether this thread's next calls move the metadata of a request (first token, logprobs)."""
        self._thread.aux = on

    def called(self, transport: str, descriptors: int, moved_bytes: int) -> None:
        """A call to the transport was made or prepared."""
        move = self._thread.move
        if move is None:
            return
        move.transport = transport
        if self._thread.aux:
            move.aux_bytes += moved_bytes
            return
        move.calls += 1
        move.descriptors += descriptors
        move.bytes += moved_bytes

    def built(self, seconds: float) -> None:
        """Descriptors were prepared for so long."""
        if self._thread.move is not None:
            self._thread.move.build_s += seconds

    def busy(self, began_s: float, ended_s: float) -> None:
        """The transport was at work between these marks of time.perf_counter()."""
        move = self._thread.move
        if move is not None:
            move.busy_s += ended_s - began_s
            move.last_s = ended_s

    def end(self, room: int | None) -> Move | None:
        """The counters of a request that ended; they are forgotten here."""
        return self._rooms.pop(room, None) if room is not None else None
