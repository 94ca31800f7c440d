"""The state of a destination, and changes that more than one message leads to.

The methods other than `_speaking` are called with the lock held.
"""

import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kvferry.integrations.handoff.arrival import Arrival
from kvferry.integrations.handoff.guest import Guest
from kvferry.integrations.handoff.messages import Begin, Cancel, Go, Message, No, Slot
from kvferry.integrations.handoff.pages import Pages
from kvferry.integrations.handoff.part import Part
from kvferry.integrations.handoff.scales import packed
from kvferry.integrations.handoff.slots import Slots
from kvferry.integrations.transports.errors import Refused, TransportError

__all__ = ["Book", "Said"]

# Of rooms that are over, so that a source that comes late is told why.
REMEMBERED = 4096

Said = list[tuple[Callable[[Message], None], Message]]


class Book:
    """Arrivals, pages and slots, under one lock. What has to be said is said after the lock is free again,
    since a peer that has stopped reading holds up who speaks to it."""

    def __init__(
        self,
        pages: Pages,
        slots: Slots,
        here: Sequence[int],
        quarantine_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`here`: the ranks of this process; `clock` is monotonic, in seconds."""
        self._here = tuple(here)
        self._lock = threading.Lock()
        self._pages, self._slots = pages, slots
        self._quarantine_s, self._clock = quarantine_s, clock
        self._arrivals: dict[int, Arrival] = {}
        self._parked: dict[int, list[tuple[Guest, Begin]]] = {}
        self._over: OrderedDict[int, str] = OrderedDict()
        self._writers: dict[str, Part] = {}
        self._numbers = itertools.count()
        self._closed = False

    @contextmanager
    def _speaking(self) -> Iterator[Said]:
        said: Said = []
        with self._lock:
            yield said
        for tell, message in said:
            tell(message)

    def _enter(self, guest: Guest, begin: Begin, said: Said) -> None:
        arrival = self._arrivals.get(begin.room)
        if arrival is None:
            said.append((guest.tell, No(begin.move, f"room {begin.room} {self._over[begin.room]}")))
            return
        if begin.tokens != arrival.expected.tokens:
            reason = f"{begin.tokens} tokens for room {arrival.room}, which expects {arrival.expected.tokens}"
            said.append((guest.tell, No(begin.move, reason)))
            self._fail(arrival, Refused(reason), said)
            return
        pairs = {(route.src_rank, route.dst_rank): route for route in guest.own}
        taken = {pair for part in arrival.parts for pair in part.routes}
        if taken.intersection(pairs) or arrival.worker not in (None, guest.worker):
            # Nothing of this one can be written: who was here first goes on.
            said.append((guest.tell, No(begin.move, f"room {arrival.room} has another source")))
            return
        part = Part(
            writer=f"{next(self._numbers)}",
            tell=guest.tell,
            agent=guest.agent,
            expected=arrival.expected,
            move=begin.move,
            verify=begin.verify or arrival.expected.verify,
            routes=pairs,
        )
        guest.parts[begin.move] = self._writers[part.writer] = part
        arrival.entered(guest.worker, part)
        at, wanted = arrival.expected.at, arrival.expected.wanted
        scales = tuple(packed(wanted.get(rank)) for rank in self._here) if wanted else ()
        said.append((guest.tell, Go(begin.move, at.pages.tolist(), at.first, scales, part.verify)))

    def _fail(
        self,
        arrival: Arrival,
        error: TransportError,
        said: Said,
        spoken: Part | None = None,
        quiet: Part | None = None,
    ) -> None:
        """`spoken` knows already, `quiet` writes nothing any more."""
        if arrival.over:
            return
        now_s, writers = self._clock(), {}
        for part in arrival.parts:
            if part.done:
                continue
            part.over = True
            del self._writers[part.writer]
            if part is not quiet:
                writers[part.writer] = self._quarantine_s
            if part.scattering:
                writers[part.scatterer] = math.inf
            self._slots.withdraw(part.writer, now_s=now_s, timeout_s=self._quarantine_s)
            if part is not spoken:
                said.append((part.tell, Cancel(part.move, str(error))))
        self._pages.fail(arrival.key, writers, now_s)
        self._forget(arrival, f"failed: {error}")
        error.may_still_write = bool(writers)
        arrival.failed(error)
        self._grant(said)

    def _drained(self, guest: Guest, part: Part, said: Said) -> None:
        del guest.parts[part.move]
        self._pages.acknowledge(part.writer)
        self._slots.acknowledge(part.writer)
        self._grant(said)

    def _grant(self, said: Said) -> None:
        for lease in self._slots.grant(self._clock()):
            part = self._writers[lease.holder]
            said.append((part.tell, Slot(part.move, lease.ticket, lease.slot)))

    def _unpark(self, guest: Guest, move: int) -> None:
        begin = guest.parked.pop(move, None)
        if begin is not None:
            waiting = self._parked[begin.room]
            waiting.remove((guest, begin))
            if not waiting:
                del self._parked[begin.room]

    def _forget(self, arrival: Arrival, why: str) -> None:
        del self._arrivals[arrival.room]
        self._over[arrival.room] = why
        if len(self._over) > REMEMBERED:
            self._over.popitem(last=False)
