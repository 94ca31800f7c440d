"""Leases of the staging memory's slots: first come, first served, over all connections."""

from collections import deque
from dataclasses import dataclass

from kvferry.integrations.transports.errors import Refused
from kvferry.integrations.transports.quarantine import Quarantine

__all__ = ["Lease", "Slots"]

MOST_WAITING = 1024


@dataclass(frozen=True, slots=True)
class Lease:
    """`slot` is `holder`'s for its write `ticket`."""

    holder: str
    ticket: int
    slot: int


class Slots:
    """A slot is free, leased (its holder writes it), read (by the scatter) or in quarantine: its holder
    failed and may still write it. Not thread-safe; the clock is the caller's."""

    def __init__(self, count: int) -> None:
        self._free = deque(range(count))
        self._waiting: deque[tuple[str, int]] = deque()
        self._leased: dict[tuple[str, int], int] = {}
        self._read: dict[tuple[str, int], int] = {}
        self._quarantine = Quarantine()

    def want(self, holder: str, ticket: int) -> None:
        """Stand in line. Raises `Refused` for a ticket that is in use, or too many of one holder."""
        wanted = (holder, ticket)
        if wanted in self._waiting or wanted in self._leased or wanted in self._read:
            raise Refused(f"ticket {ticket} is in use")
        if sum(other == holder for other, _ in self._waiting) >= MOST_WAITING:
            raise Refused(f"more than {MOST_WAITING} tickets wait for a slot")
        self._waiting.append(wanted)

    def grant(self, now_s: float) -> list[Lease]:
        """Give out what is free, in the order of the line."""
        self._free.extend(sorted(self._quarantine.expire(now_s)))
        given = []
        while self._waiting and self._free:
            wanted, slot = self._waiting.popleft(), self._free.popleft()
            self._leased[wanted] = slot
            given.append(Lease(*wanted, slot))
        return given

    def read(self, holder: str, ticket: int) -> int:
        """The holder has written its slot: it is the reader's until `free`. `Refused` for one not leased."""
        slot = self._leased.pop((holder, ticket), None)
        if slot is None:
            raise Refused(f"ticket {ticket} has no slot")
        self._read[holder, ticket] = slot
        return slot

    def free(self, holder: str, ticket: int) -> None:
        """The reader is done with the slot."""
        self._free.append(self._read.pop((holder, ticket)))

    def withdraw(self, holder: str, *, now_s: float, timeout_s: float) -> None:
        """The holder's move is over: it waits no more, and what it leased is free when it is acknowledged
        or after `timeout_s` seconds. A slot that is being read is freed by its reader."""
        self._waiting = deque(wanted for wanted in self._waiting if wanted[0] != holder)
        leased = [wanted for wanted in self._leased if wanted[0] == holder]
        slots = [self._leased.pop(wanted) for wanted in leased]
        if slots:
            self._quarantine.hold(holder, slots, now_s=now_s, timeout_s=timeout_s)

    def acknowledge(self, holder: str) -> None:
        """The holder writes no more."""
        self._free.extend(sorted(self._quarantine.acknowledge(holder)))

    @property
    def waiting(self) -> bool:
        """Whether anybody stands in line."""
        return bool(self._waiting)

    @property
    def quarantined(self) -> frozenset[int]:
        """Slots that a failed move may still write."""
        return self._quarantine.held
