"""What every transport offers: memory registered once, peers, batches of copies, deadlines, measurements.

All copies go from the caller's registered memory into the peer's ("write"). Addresses are virtual addresses
of the process that registered them; times are seconds on a monotonic clock, and every wait ends at the
caller's own deadline whatever the library below does.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["Batch", "Measurement", "Moving", "Peer", "Region", "State", "Transport"]


@dataclass(frozen=True, slots=True)
class Region:
    """Memory to register: `nbytes` bytes at `address`, on the host or on CUDA device `device`."""

    address: int
    nbytes: int
    kind: Literal["cpu", "cuda"] = "cpu"
    device: int = 0

    def __post_init__(self) -> None:
        if self.address <= 0 or self.nbytes <= 0 or self.end >= 2**63:
            raise ValueError(f"not a region: {self.nbytes} bytes at {self.address:#x}")

    @property
    def end(self) -> int:
        """The first address behind the region."""
        return self.address + self.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Copies that are one move: `nbytes[i]` bytes from `src_addresses[i]` to the peer's `dst_addresses[i]`.

    `notice`, when not empty, reaches the peer's `notices()` after the last byte of the batch has landed.
    """

    src_addresses: NDArray[np.int64]
    dst_addresses: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    notice: bytes = b""

    def __post_init__(self) -> None:
        arrays = (self.src_addresses, self.dst_addresses, self.nbytes)
        if any(array.ndim != 1 or array.dtype != np.int64 for array in arrays):
            raise ValueError("a batch is three one-dimensional int64 arrays")
        if len({array.size for array in arrays}) != 1 or not self.nbytes.size:
            raise ValueError("a batch is three arrays of one length, at least 1")

    def __len__(self) -> int:
        return int(self.nbytes.size)

    @property
    def moved_bytes(self) -> int:
        """Sum of the descriptors' sizes."""
        return int(self.nbytes.sum())

    def part(self, first: int, end: int) -> Self:
        """Descriptors [first, end) without the notice; views, not copies."""
        piece = slice(first, end)
        return type(self)(self.src_addresses[piece], self.dst_addresses[piece], self.nbytes[piece])


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one move cost: the sample that a link model learns from.

    `moved_bytes` and `descriptors` count what is known to have landed, a descriptor that was too large to be
    posted whole by its pieces. `registration_s` and `first_contact_s`
    are what registering and connecting took, charged to the first move after them, 0 on every other;
    neither is part of `total_s`, which is `submit` to the end = waiting in line + `post_s` (handing the
    descriptors to the library) + `wire_s` (from there until the library said done; where a library does
    both in one call, all of it). `concurrency` is how many moves of this transport were under way at
    submission, this one counted.
    """

    transport: str
    peer: str
    moved_bytes: int
    descriptors: int
    registration_s: float
    first_contact_s: float
    post_s: float
    wire_s: float
    total_s: float
    concurrency: int


class State(StrEnum):
    """Where a move stands; only `RUNNING` changes."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LATE = "late"


class Peer(Protocol):
    """Another process's registered memory, as its metadata described it."""

    @property
    def name(self) -> str:
        """The caller's name for the peer."""

    @property
    def regions(self) -> tuple[Region, ...]:
        """The peer's regions, in the order in which it registered them."""


class Moving(Protocol):
    """A batch that was submitted."""

    @property
    def state(self) -> State:
        """Where the move stands now."""

    @property
    def may_still_write(self) -> bool:
        """True while the library may write destination bytes although the move failed, was cancelled or late.

        Such a destination must be quarantined: see `quarantine.Quarantine`.
        """

    @property
    def measurement(self) -> Measurement | None:
        """None while running; a move that did not end well counts only what had landed."""

    def wait(self, deadline_s: float) -> Measurement:
        """Block until the move is done, at most `deadline_s` seconds from now.

        Raises `DeadlinePassed` (the move is given up, it is `LATE` from then on), `Cancelled`, `PeerGone`,
        `Wedged` or `Refused`; each says in `may_still_write` whether the destination is safe to reuse.
        """

    def cancel(self) -> None:
        """Post nothing more; what was posted may still land. A move that has ended stays as it is."""


class Transport(Protocol):
    """One way to move bytes. Its methods may be called from any thread."""

    @property
    def name(self) -> str:
        """The transport's name in the registry."""

    def register(self, regions: tuple[Region, ...]) -> bytes:
        """Register memory, once; returns the metadata that a peer needs to write into it.

        Raises `Refused` for regions that overlap, memory the transport cannot move, or a second call.
        """

    def connect(self, peer_name: str, metadata: bytes) -> Peer:
        """Learn of a peer. A known name means that the peer restarted: the new one replaces the old.

        Raises `Refused` for metadata that does not verify or is another transport's, `PeerGone` for a peer
        that does not answer.
        """

    def submit(self, peer: Peer, batch: Batch) -> Moving:
        """Check every range, then start the move; returns at once.

        Raises `BadRange` (nothing was written), `PeerGone` for a replaced peer, `Refused` when closed.
        """

    def notices(self) -> list[bytes]:
        """The notices that arrived since the last call, oldest first; never blocks.

        Calling it also says that a peer is about to write here: a transport that sleeps then wakes up.
        """

    def close(self) -> None:
        """Give up what runs, release memory, threads and sockets. Calling it again does nothing."""
