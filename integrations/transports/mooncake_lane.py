"""The thread that posts one peer's moves into a Mooncake engine, one call at a time."""

import base64
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from kvferry.integrations.transports.base import Batch, State
from kvferry.integrations.transports.errors import TransportError
from kvferry.integrations.transports.move import Move

__all__ = ["Lane"]


class Lane(threading.Thread):
    """Moves go in with `put`, in order. `met` once the peer answered; `broken` after a failed call."""

    def __init__(
        self,
        engine: Any,
        library: Any,
        session: str,
        contact: tuple[int, int],
        why: Callable[[], TransportError],
    ) -> None:
        """`contact`: addresses of a byte here and of one at the peer that is read into it; `why` says what a
        failed call means, once the engine said that it failed."""
        super().__init__(name=f"kvferry-mooncake-{session}", daemon=True)
        self.broken = False
        self.met = threading.Event()
        self._engine, self._library, self._session, self._why = engine, library, session, why
        self._contact = contact
        self._changed = threading.Condition()
        self._moves: deque[Move] = deque()
        self._end: TransportError | None = None
        self._call: tuple[Move, float] | None = None
        self.start()

    def put(self, move: Move) -> None:
        with self._changed:
            end = self._end
            if end is None:
                self._moves.append(move)
                self._changed.notify()
        if end is not None:
            move.lost(type(end)(str(end)), taken=False)

    def stop(self, reason: TransportError) -> None:
        """Take no more; what waits, and what runs, fails with `reason`."""
        with self._changed:
            self._end = self._end or reason
            waiting = [*self._moves, *([self._call[0]] if self._call else [])]
            self._moves.clear()
            self._changed.notify()
        for move in waiting:
            move.lost(type(reason)(str(reason)), taken=False)

    def stuck_s(self) -> float:
        """Seconds since the call that runs was begun, where its move has been given up; else 0."""
        call = self._call
        if call is None or call[0].state is State.RUNNING:
            return 0.0
        return time.monotonic() - call[1]

    def run(self) -> None:
        try:
            # Opens the connection: a first contact that is not part of any move. Calls that only ask for the
            # peer's segment keep Python's lock: a stopped peer would stop every thread here for a minute.
            here, there = self._contact
            if self._engine.batch_transfer_sync_read(self._session, [here], [there], [1]) != 0:
                self._break(self._why())
            self.met.set()
            while (move := self._next()) is not None:
                while (taken := move.take()) is not None:
                    if not self._post(move, *taken):
                        return
        finally:
            self._call = None
            self._engine = None  # an engine that only this lane held ends here, not in some caller's thread

    def _next(self) -> Move | None:
        with self._changed:
            self._call = None
            self._changed.wait_for(lambda: self._moves or self._end is not None)
            move = self._moves.popleft() if self._end is None else None
            self._call = None if move is None else (move, time.monotonic())
            return move

    def _post(self, move: Move, part: Batch, last: bool) -> bool:
        started_s = time.monotonic()
        self._call = (move, started_s)
        lists = part.src_addresses.tolist(), part.dst_addresses.tolist(), part.nbytes.tolist()
        post_s = time.monotonic() - started_s
        if last and move.notice:
            note = self._library.TransferNotify("kvferry", base64.b64encode(move.notice).decode())
            write = self._library.TransferOpcode.Write
            failed = self._engine.batch_transfer_sync(self._session, *lists, write, note)
        else:
            failed = self._engine.batch_transfer_sync_write(self._session, *lists)
        if not failed:
            if move.landed(part, post_s):
                move.finish()
            return True
        error = self._why()
        move.lost(error, taken=True)
        self._break(error)
        return False

    def _break(self, error: TransportError) -> None:
        self.broken = True
        self.stop(error)
