"""One connection of a destination: a thread that does what the source says, in its order."""

import logging
import threading
from collections.abc import Callable

from kvferry.integrations.handoff.channel import Channel
from kvferry.integrations.handoff.errors import GivenUp
from kvferry.integrations.handoff.guest import Guest
from kvferry.integrations.handoff.messages import (
    NO_MOVE,
    Begin,
    Drained,
    End,
    Failed,
    Hello,
    Landed,
    No,
    Staged,
    ToDestination,
    Want,
    Welcome,
)
from kvferry.integrations.handoff.own import Own
from kvferry.integrations.handoff.part import Part
from kvferry.integrations.handoff.receiving import Receiving
from kvferry.integrations.handoff.rooms import Rooms
from kvferry.integrations.transports.errors import DeadlinePassed, PeerGone, Refused, TransportError

__all__ = ["Incoming"]

log = logging.getLogger(__name__)

HELLO_S = 10.0
# How often who waits for a slot looks whether the quarantine of one is over.
LOOK_S = 0.5


class Incoming:
    """Starts its thread; `wake` is called in it when bytes are about to come, `ended` last. Whatever a source
    sends, the thread ends in order."""

    def __init__(
        self,
        channel: Channel[ToDestination],
        own: Own,
        welcome: Welcome,
        rooms: Rooms,
        wake: Callable[[], object],
        ended: Callable[["Incoming"], None],
    ) -> None:
        self._channel, self._own, self._welcome, self._rooms = channel, own, welcome, rooms
        self._receiving = Receiving(own, rooms)
        self._wake, self._ended = wake, ended
        self._thread = threading.Thread(target=self._run, name="kvferry-handoff-in", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the connection and wait for the thread."""
        self._channel.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            guest = self._greet()
            if guest is not None:
                self._rooms.lost(guest, self._serve(guest))
        finally:
            self._channel.close()
            self._ended(self)

    def _greet(self) -> Guest | None:
        try:
            hello = self._channel.receive(HELLO_S)
            guest = Guest.of(hello, self._channel, self._own.worker, self._own.pools)
            self._channel.send(self._welcome)
        except Refused as error:
            log.warning("a source was refused: %s", error)
            self._say_no(str(error))
        except TransportError as error:
            log.info("a connection without a Hello: %s", error)
        else:
            return guest
        return None

    def _serve(self, guest: Guest) -> str:
        """Until the connection is over; returns why."""
        while True:
            try:
                message = self._channel.receive(LOOK_S if self._rooms.waiting else None)
            except DeadlinePassed:
                self._rooms.tick()
                continue
            except Refused as error:
                log.warning("%s: %s", guest.agent, error)
                self._say_no(str(error))
                return str(error)
            except PeerGone as error:
                return str(error)
            except Exception as error:
                # A mistake here: what this source holds has to be let go of all the same.
                log.exception("what %s says", guest.agent)
                return f"{type(error).__name__}: {error}"
            if isinstance(message, Hello):
                self._say_no("Hello twice")
                return "it said Hello twice"
            try:
                self._do(guest, message)
            except TransportError as error:
                self._wrong(guest, message.move, error)
            except Exception as error:
                # Of torch, or a mistake here: the source and who waits have to learn of it all the same.
                log.exception("%s: %s", guest.agent, type(message).__name__)
                self._wrong(guest, message.move, TransportError(f"{type(error).__name__}: {error}"))

    def _do(self, guest: Guest, message: Begin | Landed | Want | Staged | End | Failed | Drained) -> None:
        match message:
            case Begin():
                self._rooms.begin(guest, message)
                self._wake()
            case Failed():
                error = GivenUp(f"{guest.agent}: {message.reason}")
                self._rooms.failed(guest, message.move, error, message.drained)
            case Drained():
                self._rooms.drained(guest, message.move)
            case _:
                part = guest.parts.get(message.move)
                if part is None:
                    raise Refused(f"move {message.move} is not under way")
                if not part.over:
                    self._advance(guest, part, message)

    def _advance(self, guest: Guest, part: Part, message: Landed | Want | Staged | End) -> None:
        match message:
            case Want():
                self._rooms.want(part, message.ticket)
            case Landed():
                self._receiving.landed(part, message)
            case Staged():
                self._receiving.staged(part, message)
            case End():
                self._rooms.end(guest, part)

    def _wrong(self, guest: Guest, move: int, error: TransportError) -> None:
        log.warning("%s: move %d: %s", guest.agent, move, error)
        self._rooms.wrong(guest, move, error)

    def _say_no(self, reason: str) -> None:
        try:
            self._channel.send(No(NO_MOVE, reason))
        except PeerGone as error:
            log.debug("not told: %s", error)
