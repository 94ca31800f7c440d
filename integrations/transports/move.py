"""One batch under way: cut into parts, driven by a transport's thread, waited for by the caller."""

import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from kvferry.integrations.transports.base import Batch, Measurement, State
from kvferry.integrations.transports.errors import Cancelled, DeadlinePassed, TransportError

__all__ = ["Move", "cut"]


def cut(batch: Batch, max_descriptors: int, max_bytes: int) -> list[Batch]:
    """Consecutive parts of at most `max_descriptors` descriptors and `max_bytes` bytes.

    A descriptor larger than `max_bytes` becomes several of at most that.
    """
    batch = _split(batch, max_bytes)
    ends = np.cumsum(batch.nbytes)
    parts, first, before = [], 0, 0
    while first < len(batch):
        full = int(np.searchsorted(ends, before + max_bytes, side="right"))
        end = min(full, first + max_descriptors, len(batch))
        parts.append(batch.part(first, end))
        first, before = end, int(ends[end - 1])
    return parts


def _split(batch: Batch, max_bytes: int) -> Batch:
    if int(batch.nbytes.max()) <= max_bytes:
        return batch
    pieces = -(-batch.nbytes // max_bytes)
    within = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    before = within * max_bytes
    return Batch(
        np.repeat(batch.src_addresses, pieces) + before,
        np.repeat(batch.dst_addresses, pieces) + before,
        np.minimum(np.repeat(batch.nbytes, pieces) - before, max_bytes),
        batch.notice,
    )


class Move:
    """`Moving` for the caller above, `take`, `landed`, `lost` and `finish` for the thread that drives it."""

    def __init__(
        self,
        batch: Batch,
        parts: list[Batch],
        measurement: Measurement,
        ended: Callable[["Move"], None],
    ) -> None:
        """`measurement` holds what is known at submission; `ended` is called once, when the move is over."""
        self.notice = batch.notice
        self._changed = threading.Condition()
        self._parts = deque(parts)
        self._start = measurement
        self._ended = ended
        self._state = State.RUNNING
        self._error: TransportError | None = None
        self._measurement: Measurement | None = None
        self._flying = 0
        self._lost = False
        self._moved_bytes = self._descriptors = 0
        self._post_s = 0.0
        self._submitted_s = time.monotonic()
        self._first_post_s: float | None = None

    @property
    def state(self) -> State:
        return self._state

    @property
    def measurement(self) -> Measurement | None:
        return self._measurement

    @property
    def may_still_write(self) -> bool:
        with self._changed:
            return self._unsafe()

    @property
    def announces(self) -> bool:
        """True where the next part carries the notice, and so may be posted only when all others landed."""
        return bool(self.notice) and len(self._parts) == 1

    def wait(self, deadline_s: float) -> Measurement:
        with self._changed:
            if not self._changed.wait_for(lambda: self._state is not State.RUNNING, max(deadline_s, 0.0)):
                left = sum(map(len, self._parts))
                self._end(
                    State.LATE,
                    DeadlinePassed(
                        f"{self._start.transport} to {self._start.peer}: not done after {deadline_s:g} s "
                        f"({self._descriptors} descriptors landed, {left} not posted)"
                    ),
                )
            if self._error is not None:
                self._error.may_still_write = self._unsafe()
                raise self._error
            assert self._measurement is not None
            return self._measurement

    def cancel(self) -> None:
        with self._changed:
            self._end(State.CANCELLED, Cancelled(f"{self._start.transport} to {self._start.peer}: cancelled"))

    def take(self) -> tuple[Batch, bool] | None:
        """The next part to post and whether it is the last; None when there is none or the move is over."""
        with self._changed:
            if self._state is not State.RUNNING or not self._parts:
                return None
            self._flying += 1
            self._first_post_s = self._first_post_s or time.monotonic()
            return self._parts.popleft(), not self._parts

    def landed(self, part: Batch, post_s: float) -> bool:
        """A part is at the peer; `post_s` went into handing it over. True when `finish` is due."""
        with self._changed:
            self._flying -= 1
            self._moved_bytes += part.moved_bytes
            self._descriptors += len(part)
            self._post_s += post_s
            return self._state is State.RUNNING and not self._parts and not self._flying

    def lost(self, error: TransportError, *, taken: bool) -> None:
        """The move cannot go on; `taken` where that ends a part, which the library may go on writing."""
        with self._changed:
            self._flying -= taken
            self._lost |= taken
            self._end(State.FAILED, error)

    def finish(self) -> None:
        """Everything landed and the notice is out."""
        with self._changed:
            self._end(State.DONE, None)

    def _unsafe(self) -> bool:
        return self._state is not State.DONE and (self._lost or self._flying > 0)

    def _end(self, state: State, error: TransportError | None) -> None:
        if self._state is not State.RUNNING:
            return
        now = time.monotonic()
        wire_s = max(now - self._first_post_s - self._post_s, 0.0) if self._first_post_s else 0.0
        start = self._start
        self._measurement = Measurement(
            transport=start.transport,
            peer=start.peer,
            moved_bytes=self._moved_bytes,
            descriptors=self._descriptors,
            registration_s=start.registration_s,
            first_contact_s=start.first_contact_s,
            post_s=self._post_s,
            wire_s=wire_s,
            total_s=now - self._submitted_s,
            concurrency=start.concurrency,
        )
        self._state, self._error = state, error
        self._ended(self)
        self._changed.notify_all()
