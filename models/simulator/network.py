"""KV on its way between simulated workers: moves that share the bandwidth of NICs."""

from collections.abc import Callable

from kvferry.models.simulator.events import Event, Events


class Nic:
    """One direction of a NIC (or of a host's path): what moves over it now shares `bytes_per_s` equally."""

    __slots__ = ("bytes_per_s", "moving", "name")

    def __init__(self, name: str, bytes_per_s: float) -> None:
        self.name = name
        self.bytes_per_s = bytes_per_s
        self.moving: dict[Move, None] = {}

    @property
    def share(self) -> float:
        return self.bytes_per_s / len(self.moving)


class Move:
    """The KV of one request. Bytes are offered as prefill computes them (`offer`); `done` is called once
    all have gone, `closing_s` after the last.

    `busy_s`: how long it had something to send. `sent_bytes` leaves out what posting descriptors cost.
    """

    __slots__ = (
        "_closing_s",
        "_done",
        "_event",
        "_events",
        "_last",
        "_left",
        "_rate",
        "_settled_s",
        "busy_s",
        "sent_bytes",
        "sink",
        "source",
    )

    def __init__(
        self, events: Events, source: Nic, sink: Nic, closing_s: float, done: Callable[[], object]
    ) -> None:
        self.source = source
        self.sink = sink
        self.busy_s = 0.0
        self.sent_bytes = 0.0
        self._events = events
        self._closing_s = closing_s
        self._done = done
        self._event: Event | None = None
        self._last = False
        self._left = 0.0
        self._rate = 0.0
        self._settled_s = 0.0

    def offer(self, moved_bytes: float, posting_s: float = 0.0, last: bool = False) -> None:
        """More can be sent; `posting_s` of descriptors hold the NIC as long as bytes of that time would."""
        self.sent_bytes += moved_bytes
        self._settle()
        self._left += moved_bytes + posting_s * min(self.source.bytes_per_s, self.sink.bytes_per_s)
        self._last = self._last or last
        if self in self.source.moving:
            self._schedule()
        elif self._left > 0.0:
            self._settled_s = self._events.now_s
            self.source.moving[self] = None
            self.sink.moving[self] = None
            reshare(self.source, self.sink)
        elif self._last:
            self._close()

    def drop(self) -> None:
        """Give it up; `done` is not called."""
        if self._event is not None:
            self._event.cancel()
        self._leave()

    def reshare(self) -> None:
        """The bandwidth of a NIC, or the number of those that share it, has changed."""
        self._settle()
        self._rate = min(self.source.share, self.sink.share)
        self._schedule()

    def _settle(self) -> None:
        if self in self.source.moving:
            elapsed_s = self._events.now_s - self._settled_s
            self.busy_s += elapsed_s
            self._left = max(0.0, self._left - elapsed_s * self._rate)
            self._settled_s = self._events.now_s

    def _schedule(self) -> None:
        if self._event is not None:
            self._event.cancel()
        self._event = self._events.at(self._events.now_s + self._left / self._rate, self._drained)

    def _drained(self) -> None:
        self._settle()
        self._left = 0.0
        self._leave()
        if self._last:
            self._close()

    def _close(self) -> None:
        self._event = self._events.at(self._events.now_s + self._closing_s, self._done)

    def _leave(self) -> None:
        if self in self.source.moving:
            del self.source.moving[self], self.sink.moving[self]
            reshare(self.source, self.sink)


def reshare(*nics: Nic) -> None:
    """Give every move over these NICs its new share."""
    moving: dict[Move, None] = {}
    for nic in nics:
        moving |= nic.moving
    for move in moving:
        move.reshare()
