"""The thread that posts and checks NIXL transfers, and makes progress for peers that write here."""

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvferry.integrations.transports.base import Batch
from kvferry.integrations.transports.errors import PeerGone, TransportError, Wedged
from kvferry.integrations.transports.executor import RemotePeer
from kvferry.integrations.transports.move import Move
from kvferry.integrations.transports.ranges import Ranges

__all__ = ["MEMORY", "Pump"]

log = logging.getLogger(__name__)

MEMORY = {"cpu": "DRAM", "cuda": "VRAM"}
FLYING_PARTS = 2  # the next part is posted before the wire runs dry
SHORT_S, MOVING_S, IDLE_S = 5e-5, 2e-4, 2.5e-2
SPIN_S = 1e-3  # pauses of 50 us between polls that move bytes made moves over TCP a quarter longer
LINGER_S = 0.1  # where bytes moved, or are awaited, the next ones would wait for a poll as rare as when idle
SLOW_POLL_S = 2e-5  # an empty poll takes 1 us: a longer one moved bytes, and more are behind them


@dataclass(slots=True, eq=False)
class Flight:
    """A part that was posted; its handle is kept until the library is done, whatever became of the move."""

    job: "Job"
    part: Batch
    handle: Any
    post_s: float


@dataclass(slots=True, eq=False)
class Job:
    """A move, where it goes, and how many of its parts fly."""

    peer: RemotePeer
    own: Ranges
    move: Move
    flying: int = 0


class Pump(threading.Thread):
    """Polls with backoff: at once while bytes move, 5000 times a second until soon after, then 40 times."""

    def __init__(self, library: Any) -> None:
        super().__init__(name="kvferry-nixl", daemon=True)
        self.library_lock = threading.RLock()
        self._library = library
        self._inbox: deque[Job] = deque()  # filled without the lock, which a call that copies holds for long
        self._jobs: list[Job] = []
        self._flights: list[Flight] = []
        self._notices: deque[bytes] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self.start()

    def notices(self) -> list[bytes]:
        self._wake.set()
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def wake(self) -> None:
        """Poll at once, and often for `LINGER_S`."""
        self._wake.set()

    def put(self, peer: RemotePeer, own: Ranges, move: Move) -> None:
        self._inbox.append(Job(peer, own, move))
        self._wake.set()

    def forget(self, peer: RemotePeer, error: TransportError) -> None:
        """Fail the peer's moves, release what was posted to it and remove it from the library."""
        with self.library_lock:
            for flight in [flight for flight in self._flights if flight.job.peer is peer]:
                self._drop(flight, error)
            self._take_in()
            for job in [job for job in self._jobs if job.peer is peer]:
                job.move.lost(type(error)(str(error)), taken=False)
            try:
                self._library.remove_remote_agent(peer.metadata.agent)
            except Exception:
                # A peer that died is gone from the library already; nothing is left to remove.
                log.debug("remove_remote_agent of %s", peer.name, exc_info=True)

    def stop(self) -> None:
        """End the thread; a call into the library that runs is waited for."""
        self._stopping = True
        self._wake.set()
        self.join()

    def release(self) -> None:
        """Let go of the library."""
        self._flights.clear()
        self._jobs.clear()
        self._library = None

    def run(self) -> None:
        pause_s = awake_s = moved_s = 0.0
        rested = True
        while not self._stopping:
            with self.library_lock:
                self._take_in()
                busy = self._receive() | self._check() | self._post()
                # Moves that are over leave here, but for what of them still flies.
                self._jobs = [job for job in self._jobs if job.move.measurement is None]
            now_s = time.monotonic()
            if busy:
                # The first poll after a pause is slow for want of a warm cache: only the second one tells.
                if not rested:
                    pause_s, awake_s, moved_s = 0.0, now_s, now_s
                rested = False
            if busy or now_s - moved_s < SPIN_S:
                time.sleep(0.0)  # others of this process want the interpreter
                continue
            awake = bool(self._jobs) or now_s - awake_s < LINGER_S
            pause_s = min(max(pause_s * 1.5, SHORT_S), MOVING_S if awake else IDLE_S)
            rested = True
            if self._wake.wait(pause_s):
                self._wake.clear()
                pause_s, awake_s = min(pause_s, SHORT_S), time.monotonic()

    def _take_in(self) -> None:
        while self._inbox:
            self._jobs.append(self._inbox.popleft())

    def _receive(self) -> bool:
        began_s = time.perf_counter()
        for notes in self._library.get_new_notifs().values():
            self._notices.extend(notes)
        return time.perf_counter() - began_s > SLOW_POLL_S

    def _check(self) -> bool:
        busy = False
        for flight in tuple(self._flights):
            began_s = time.perf_counter()
            try:
                state = self._library.check_xfer_state(flight.handle)
                busy |= time.perf_counter() - began_s > SLOW_POLL_S
                if state == "PROC":
                    continue
                if state != "DONE":
                    raise RuntimeError(f"transfer is {state}")
                self._landed(flight)
            except Exception as error:
                # NIXL's errors share no base of their own; each ends this move and none may end the pump.
                log.debug("check_xfer_state", exc_info=True)
                self._drop(flight, self._meaning(flight.job.peer, error))
            busy = True
        return busy

    def _post(self) -> bool:
        busy = False
        for job in tuple(self._jobs):
            while job.flying < (1 if job.move.announces else FLYING_PARTS):
                if (taken := job.move.take()) is None:
                    break
                part, last = taken
                busy = True
                flight = Flight(job, part, None, 0.0)
                self._flights.append(flight)
                job.flying += 1
                try:
                    began_s = time.perf_counter()
                    flight.handle = self._handle(job, part, job.move.notice if last else b"")
                    flight.post_s = time.perf_counter() - began_s
                    state = self._library.transfer(flight.handle)
                    if state == "ERR":
                        raise RuntimeError("transfer is ERR")
                    if state == "DONE":
                        self._landed(flight)
                except Exception as error:
                    # As in `_check`.
                    log.debug("transfer", exc_info=True)
                    self._drop(flight, self._meaning(job.peer, error))
        return busy

    def _handle(self, job: Job, part: Batch, notice: bytes) -> Any:
        source = job.own.devices[job.own.find("source", part.src_addresses, part.nbytes)]
        theirs = job.peer.ranges
        target = theirs.devices[theirs.find("destination", part.dst_addresses, part.nbytes)]
        lists = [
            self._library.get_xfer_descs(
                np.stack([addresses, part.nbytes, devices], axis=1).astype(np.uint64), MEMORY[kind]
            )
            for addresses, devices, kind in (
                (part.src_addresses, source, job.own.kind),
                (part.dst_addresses, target, theirs.kind),
            )
        ]
        return self._library.initialize_xfer("WRITE", *lists, job.peer.metadata.agent, notice)

    def _landed(self, flight: Flight) -> None:
        self._forget(flight)
        if flight.job.move.landed(flight.part, flight.post_s):
            flight.job.move.finish()

    def _drop(self, flight: Flight, error: TransportError) -> None:
        self._forget(flight)
        flight.job.move.lost(type(error)(str(error)), taken=True)

    def _forget(self, flight: Flight) -> None:
        self._flights.remove(flight)
        flight.job.flying -= 1
        if flight.handle is not None:
            self.drop_handle(flight.handle)

    def drop_handle(self, handle: Any) -> None:
        """Cancel what still flies; the lock is the caller's."""
        try:
            self._library.release_xfer_handle(handle)
        except Exception:
            # A transfer that cannot be cancelled keeps its handle: its move says that it may still write.
            log.debug("release_xfer_handle", exc_info=True)

    @staticmethod
    def _meaning(peer: RemotePeer, error: Exception) -> TransportError:
        if "Disconnect" in type(error).__name__:
            return PeerGone(f"{peer.name}: the connection is gone ({error})")
        return Wedged(f"{peer.name}: nixl: {error or type(error).__name__}")
