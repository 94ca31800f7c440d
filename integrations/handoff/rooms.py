"""What happens to expected rooms. Every method may be called from any thread."""

from collections.abc import Iterator
from contextlib import contextmanager

from kvferry.integrations.handoff.arrival import Arrival
from kvferry.integrations.handoff.book import Book
from kvferry.integrations.handoff.guest import Guest
from kvferry.integrations.handoff.messages import Begin, Complete, Message, No
from kvferry.integrations.handoff.pages import PageState
from kvferry.integrations.handoff.part import Part, Route, Spent
from kvferry.integrations.transports.errors import Cancelled, PeerGone, Refused, TransportError
from kvferry.models.moves.pool_spec import Ints
from kvferry.models.moves.portions import Portion

__all__ = ["Rooms"]

# Moves of one source whose rooms nobody expects yet.
MOST_PARKED = 1024


class Rooms(Book):
    """Rooms that are expected, and the sources that come for them."""

    # What the owner does.

    def expect(self, arrival: Arrival) -> None:
        """Raises `Refused` for a room that is expected already, and pages that are not free."""
        with self._speaking() as said:
            if self._closed:
                raise Refused("this destination is closed")
            if arrival.room in self._arrivals:
                raise Refused(f"room {arrival.room} is expected already")
            self._pages.take(arrival.key, arrival.expected.at.pages, self._clock())
            self._arrivals[arrival.room] = arrival
            for guest, begin in self._parked.pop(arrival.room, ()):
                del guest.parked[begin.move]
                self._enter(guest, begin, said)

    def give_up(self, arrival: Arrival, error: TransportError) -> None:
        """The end of an arrival that is not over."""
        with self._speaking() as said:
            self._fail(arrival, error, said)

    def release(self, pages: Ints) -> None:
        with self._lock:
            self._pages.release(pages)

    def those(self, state: PageState) -> frozenset[int]:
        with self._lock:
            return self._pages.those(state, self._clock())

    def close(self) -> None:
        """Give everything up; nothing can be expected any more."""
        with self._speaking() as said:
            self._closed = True
            for arrival in tuple(self._arrivals.values()):
                self._fail(arrival, Cancelled(f"room {arrival.room}: the destination closes"), said)

    # What sources do, each in the thread of its connection.

    def begin(self, guest: Guest, begin: Begin) -> None:
        with self._speaking() as said:
            if begin.move in guest.parts or begin.move in guest.parked or begin.move < 0:
                raise Refused(f"move {begin.move} began twice, or is no move")
            if begin.room in self._arrivals or begin.room in self._over:
                self._enter(guest, begin, said)
            elif self._closed or len(guest.parked) >= MOST_PARKED:
                reason = "closed" if self._closed else f"{MOST_PARKED} moves wait for their rooms already"
                said.append((guest.tell, No(begin.move, reason)))
            else:
                guest.parked[begin.move] = begin
                self._parked.setdefault(begin.room, []).append((guest, begin))

    def want(self, part: Part, ticket: int) -> None:
        """Raises `Refused` as `Slots.want`."""
        with self._speaking() as said:
            if not part.over:
                self._slots.want(part.writer, ticket)
                self._grant(said)

    @contextmanager
    def reading(self, part: Part, ticket: int) -> Iterator[int | None]:
        """The slot of a write that is done, free again afterwards; None where the part is over. While it is
        read the part's pages are written here, and stay in quarantine as long. `Refused` as `Slots.read`."""
        with self._lock:
            slot = None if part.over else self._slots.read(part.writer, ticket)
            part.scattering = slot is not None
        try:
            yield slot
        finally:
            if slot is not None:
                with self._speaking() as said:
                    part.scattering = False
                    self._pages.acknowledge(part.scatterer)
                    self._slots.free(part.writer, ticket)
                    self._grant(said)

    def came(self, part: Part, route: Route, portion: Portion, spent: Spent, answer: Message | None) -> None:
        """A portion is in the pool, and checked."""
        with self._speaking() as said:
            if not part.over:
                part.came(route, portion, spent)
                if answer is not None:
                    said.append((part.tell, answer))

    def end(self, guest: Guest, part: Part) -> None:
        """Raises `Refused` where something is missing."""
        with self._speaking() as said:
            if part.over:
                return
            part.check_whole()
            part.over = part.done = True
            del guest.parts[part.move], self._writers[part.writer]
            self._slots.withdraw(part.writer, now_s=self._clock(), timeout_s=self._quarantine_s)
            said.append((part.tell, Complete(part.move, part.spent.verify_s)))
            arrival = self._arrivals[part.expected.room]
            here = {pair for one in arrival.parts if one.done for pair in one.routes}
            if here.issuperset((route.src_rank, route.dst_rank) for route in guest.routes):
                self._pages.complete(arrival.key)
                self._forget(arrival, "has arrived")
                arrival.completed()

    def wrong(self, guest: Guest, move: int, error: TransportError) -> None:
        """The source did what it must not, or sent what is not right: it is told, the arrival fails."""
        with self._speaking() as said:
            self._unpark(guest, move)
            part = guest.parts.get(move)
            if part is None or not part.over:
                said.append((guest.tell, No(move, str(error))))
            if part is not None and not part.over:
                self._fail(self._arrivals[part.expected.room], error, said, spoken=part)

    def failed(self, guest: Guest, move: int, error: TransportError, drained: bool) -> None:
        """The source gave a move up; it may be over here already."""
        with self._speaking() as said:
            self._unpark(guest, move)
            part = guest.parts.get(move)
            if part is None:
                return
            if not part.over:
                quiet = part if drained else None
                self._fail(self._arrivals[part.expected.room], error, said, spoken=part, quiet=quiet)
            if drained:
                self._drained(guest, part, said)

    def drained(self, guest: Guest, move: int) -> None:
        """Raises `Refused` for a move that did not fail."""
        with self._speaking() as said:
            part = guest.parts.get(move)
            if part is not None and not part.over:
                raise Refused("it drained a move that had not failed")
            if part is not None:
                self._drained(guest, part, said)

    def lost(self, guest: Guest, reason: str) -> None:
        """The connection is gone. What its moves may write stays in quarantine until its time is over."""
        with self._speaking() as said:
            for move in tuple(guest.parked):
                self._unpark(guest, move)
            for part in guest.parts.values():
                if not part.over:
                    error = PeerGone(f"room {part.expected.room}: {guest.agent}: {reason}")
                    self._fail(self._arrivals[part.expected.room], error, said, spoken=part)
            guest.parts.clear()

    @property
    def waiting(self) -> bool:
        """Whether anybody waits for a slot."""
        with self._lock:
            return self._slots.waiting

    def tick(self) -> None:
        """Slots whose quarantine is over go to those who wait."""
        with self._speaking() as said:
            self._grant(said)
