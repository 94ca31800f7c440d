"""One move leaving this process: who may wait for it, give it up, and what is owed to the other side then."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from kvferry.integrations.handoff.messages import (
    Begin,
    Cancel,
    Complete,
    Drained,
    End,
    Failed,
    Go,
    Message,
    No,
    Scattered,
    Slot,
    ToSource,
)
from kvferry.integrations.handoff.peering import Peering
from kvferry.integrations.handoff.record import HandoffRecord
from kvferry.integrations.handoff.tally import Tally
from kvferry.integrations.transports.base import Batch, Moving, Transport
from kvferry.integrations.transports.errors import (
    Cancelled,
    DeadlinePassed,
    PeerGone,
    Refused,
    TransportError,
)

__all__ = ["Departure", "Errand"]

log = logging.getLogger(__name__)

Found = TypeVar("Found")
# How often it is asked whether a failed move still writes.
DRAIN_FIRST_S, DRAIN_MOST_S = 0.002, 0.25


class Errand(Protocol):
    """What is to be done for a move."""

    room: int
    tokens: int
    verify: bool

    def carry(self, departure: "Departure", go: Go) -> None:
        """Send everything; in the departure's thread."""

    def record(self, departure: "Departure", total_s: float) -> HandoffRecord:
        """What it took."""

    def ended(self, outcome: HandoffRecord | TransportError, answered: bool) -> None:
        """Called once, before whoever waits knows; must not wait for anything. `answered`: the destination
        had said where the move goes."""


class Departure:
    """A thread does the errand and ends with it; after a failure it stays until nothing more is written, so
    that the destination can be told."""

    def __init__(self, peering: Peering, transport: Transport, errand: Errand, limit_s: float) -> None:
        """At most `limit_s` seconds from now it is over, whether or not anybody waits. Raises `PeerGone`."""
        self.peering = peering
        self.tally = Tally()
        self.slots: dict[int, int] = {}
        self._transport = transport
        self._errand = errand
        self._limit_s = limit_s
        self._began_s = time.monotonic()
        self._changed = threading.Condition()
        self._go: Go | None = None
        self._carried = False
        self._error: TransportError | None = None
        self._record: HandoffRecord | None = None
        self._moving: list[Moving] = []
        self._owes = True
        self._settled = False
        self.number = peering.add(self)
        try:
            # Here, so that the answer is on its way while the thread comes into being.
            self.say(Begin(self.number, errand.room, errand.tokens, errand.verify))
        except PeerGone as error:
            self.lost(error)
        self._thread = threading.Thread(target=self._run, name=f"kvferry-to-{peering.name}", daemon=True)
        self._thread.start()

    def wait(self, deadline_s: float) -> HandoffRecord:
        """Block until the destination has everything, at most `deadline_s` seconds from now.

        Raises `DeadlinePassed` (the move is given up), `Cancelled`, `PeerGone`, `Wedged`, or `Refused` with
        the reason of either side; `may_still_write` says whether the transport is still at it.
        """
        with self._changed:
            if not self._changed.wait_for(self._over, max(deadline_s, 0.0)):
                self.fail(DeadlinePassed(f"{self.peering.name}: not handed off after {deadline_s:g} s"))
                self._changed.wait_for(self._over)  # it was being done: what hears of it does so at once
            if self._record is not None:
                return self._record
            assert self._error is not None
            self._error.may_still_write = self._may_write()
            raise self._error

    def cancel(self) -> None:
        """Give the move up; one that is over stays as it is."""
        self.fail(Cancelled(f"{self.peering.name}: cancelled"))

    def join(self, timeout_s: float) -> bool:
        """Whether its thread has ended: nothing is written any more, or nobody is there to be told."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # For the peering's thread

    def told(self, message: ToSource) -> None:
        if isinstance(message, Complete):
            return self._end(message)
        with self._changed:
            if isinstance(message, Go):
                self._go = message
            elif isinstance(message, Slot):
                self.slots[message.ticket] = message.slot
            elif isinstance(message, Scattered):
                self.tally.scattered(message)
            elif isinstance(message, No):
                self._owes &= self._go is not None
                self.fail(Refused(f"{self.peering.name}: {message.reason}"))
            elif isinstance(message, Cancel):
                self.fail(Cancelled(f"{self.peering.name} gave it up: {message.reason}"))
            self._changed.notify_all()
        return None

    def lost(self, error: TransportError) -> None:
        with self._changed:
            self._owes = False
            self.fail(PeerGone(str(error)))

    # For those who do the errand

    def say(self, message: Message) -> None:
        """Raises `PeerGone`."""
        self.peering.send(message)

    def carry(self, batch: Batch) -> None:
        """Move a batch to the end; any thread. Raises as `Moving.wait`, or why the move is over."""
        moving = self._transport.submit(self.peering.peer, batch)
        with self._changed:
            self._moving.append(moving)
            over = self._error is not None
        if over:
            moving.cancel()
        measured = moving.wait(self._left_s())
        with self._changed:
            self._moving.remove(moving)
            self.tally.moved(measured)

    def until(self, what: str, found: Callable[[], Found | None]) -> Found:
        """What `found` returns as soon as that is not None; raises why the move is over, or `DeadlinePassed`.

        `found` is asked whenever something changed: a message came, or someone called `wake`.
        """
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                if (value := found()) is not None:
                    return value
                left_s = self._left_s()
                if left_s <= 0.0:
                    raise DeadlinePassed(f"{self.peering.name}: no {what} within {self._limit_s:g} s")
                self._changed.wait(left_s)

    def spent(self, *, gather_s: float = 0.0, convert_s: float = 0.0, verify_s: float = 0.0) -> None:
        """Count time that was spent here."""
        with self._changed:
            self.tally.gather_s += gather_s
            self.tally.convert_s += convert_s
            self.tally.verify_s += verify_s

    def wake(self) -> None:
        """Something that `until` asks for may be there."""
        with self._changed:
            self._changed.notify_all()

    def fail(self, error: TransportError) -> None:
        """Give the move up for this reason; the first one counts."""
        with self._changed:
            if self._settled:
                return
            self._settled = True
            self._errand.ended(error, self._go is not None)
            self._error = error
            for each in self._moving:
                each.cancel()
            self._changed.notify_all()

    def fail_with(self, error: Exception) -> None:
        """As `fail`, for whatever the errand raised."""
        if isinstance(error, TransportError):
            self.fail(error)
        elif isinstance(error, ValueError):
            # A layout that allows no move to the pages that were given, or values that have no scale.
            self.fail(Refused(f"{self.peering.name}: {error}"))
        else:
            log.error("handoff to %s", self.peering.name, exc_info=error)
            self.fail(TransportError(f"{self.peering.name}: {type(error).__name__}: {error}"))

    def _run(self) -> None:
        try:
            go = self.until("answer", lambda: self._go)
            self._errand.carry(self, go)
            self._carried = True
            self.say(End(self.number))
            self.until("word that all is there", lambda: self._record)
        except Exception as error:
            log.debug("handoff to %s", self.peering.name, exc_info=True)
            self.fail_with(error)
        if self._error is not None:
            self._give_up(self._error)
        self.peering.remove(self.number)

    def _end(self, complete: Complete) -> None:
        """In the peering's thread: another turn of threads would be a tenth of a fast move."""
        with self._changed:
            if not self._carried:
                self.fail(Refused(f"{self.peering.name} said that all is there before it was sent"))
            if self._settled:
                return
            self.tally.verify_s += complete.verify_s  # of every slot too
            record = self._errand.record(self, time.monotonic() - self._began_s)
            self._settled = True
        try:
            self._errand.ended(record, True)
        except Exception:
            # Whoever waits shall know all the same: everything is there.
            log.exception("the end of a handoff to %s", self.peering.name)
        with self._changed:
            self._record = record
            self._changed.notify_all()

    def _give_up(self, error: TransportError) -> None:
        drained = not self._may_write()
        try:
            if self._owes:
                self.say(Failed(self.number, str(error), drained))
            pause_s = DRAIN_FIRST_S
            while self._may_write() and not self.peering.closing.wait(pause_s):
                pause_s = min(pause_s * 1.5, DRAIN_MOST_S)
            if self._owes and not drained and not self._may_write():
                self.say(Drained(self.number))
        except PeerGone as gone:
            log.debug("%s was not told that a move failed: %s", self.peering.name, gone)

    def _over(self) -> bool:
        return self._error is not None or self._record is not None

    def _may_write(self) -> bool:
        with self._changed:
            return any(moving.may_still_write for moving in self._moving)

    def _left_s(self) -> float:
        return self._began_s + self._limit_s - time.monotonic()
