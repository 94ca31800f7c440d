"""What the transports share: checks before submission, what is charged to which move, an orderly end."""

import threading
import time
import uuid
from abc import ABC, abstractmethod
from typing import ClassVar

from kvferry.integrations.transports import metadata as wire
from kvferry.integrations.transports.base import Batch, Measurement, Peer, Region
from kvferry.integrations.transports.errors import PeerGone, Refused
from kvferry.integrations.transports.move import Move, cut
from kvferry.integrations.transports.ranges import Ranges

__all__ = ["Executor", "RemotePeer"]


class RemotePeer:
    """`Peer`, and what a transport needs to reach it. `gone` is set when a newer peer took its name."""

    __slots__ = ("contact_s", "gone", "metadata", "name", "ranges")

    def __init__(self, name: str, metadata: wire.PeerMetadata) -> None:
        self.name = name
        self.metadata = metadata
        self.ranges = Ranges(tuple(region.region() for region in metadata.regions))
        self.contact_s = 0.0
        self.gone = False

    @property
    def regions(self) -> tuple[Region, ...]:
        return self.ranges.regions


class Executor(ABC):
    """A `Transport` but for the library: subclasses register, connect, drive moves and close."""

    name: ClassVar[str]
    kinds: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    part_descriptors: ClassVar[int] = 1024
    # So that cancelling, and a library's own time-out, mean something.
    part_bytes: ClassVar[int] = 256 * 2**20

    def __init__(self, agent: str, host: str = "127.0.0.1") -> None:
        """`agent` names this process to its peers; `host` is the address at which they reach it."""
        self.agent = f"{agent}-{uuid.uuid4().hex[:12]}"  # a restarted process is another agent
        self.host = host
        self.own: Ranges | None = None
        self._lock = threading.RLock()
        self._closed = False
        self._registration_s = 0.0
        self._peers: dict[str, RemotePeer] = {}
        self._running: set[Move] = set()

    def register(self, regions: tuple[Region, ...]) -> bytes:
        with self._lock:
            self._open()
            if self.own is not None:
                raise Refused("this transport has its regions already")
            own = Ranges(regions)
            if own.kind not in self.kinds:
                raise Refused(f"{self.name} cannot move {own.kind} memory")
            started_s = time.monotonic()
            session, blob = self._register(own)
            self._registration_s = time.monotonic() - started_s
            self.own = own
            described = tuple(
                wire.RegionMetadata(r.address, r.nbytes, r.kind, r.device, self._backing(r)) for r in regions
            )
            return wire.encode(wire.PeerMetadata(self.name, self.agent, session, blob, described))

    def connect(self, peer_name: str, metadata: bytes) -> Peer:
        peer = RemotePeer(peer_name, wire.decode(metadata, self.name))
        with self._lock:
            self._open()
            if (old := self._peers.pop(peer_name, None)) is not None:
                old.gone = True
                self._disconnect(old)
        # Without the lock: a peer that does not answer must not hold up moves to others.
        started_s = time.monotonic()
        try:
            self._connect(peer)
        except Exception:
            self._open()  # or it failed for that only
            raise
        peer.contact_s = time.monotonic() - started_s
        with self._lock:
            if (old := self._peers.pop(peer_name, None)) is not None or self._closed:
                (old or peer).gone = True
                self._disconnect(old or peer)
            self._open()
            self._peers[peer_name] = peer
        return peer

    def submit(self, peer: Peer, batch: Batch) -> Move:
        with self._lock:
            self._open()
            if not isinstance(peer, RemotePeer) or self._peers.get(peer.name) is not peer:
                raise PeerGone(f"{peer.name} was replaced, or is not a peer of this transport")
            if self.own is None:
                raise Refused("register memory first")
            self.own.find("source", batch.src_addresses, batch.nbytes)
            peer.ranges.find("destination", batch.dst_addresses, batch.nbytes)
            start = Measurement(
                transport=self.name,
                peer=peer.name,
                moved_bytes=0,
                descriptors=0,
                registration_s=self._registration_s,
                first_contact_s=peer.contact_s,
                post_s=0.0,
                wire_s=0.0,
                total_s=0.0,
                concurrency=len(self._running) + 1,
            )
            self._registration_s = peer.contact_s = 0.0
            parts = cut(batch, self.part_descriptors, self.part_bytes)
            move = Move(batch, parts, start, self._running.discard)
            self._running.add(move)
            try:
                self._start(peer, move)
            except BaseException:
                self._running.discard(move)
                raise
        return move

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for move in tuple(self._running):
                move.cancel()
            for peer in self._peers.values():
                peer.gone = True
        # Without the lock: the threads that are waited for may need it.
        self._close()
        self._peers.clear()

    def _open(self) -> None:
        if self._closed:
            raise Refused(f"this {self.name} transport is closed")

    def _backing(self, region: Region) -> tuple[str, int] | None:
        """The shared file that the region lies in, where a transport needs to know."""
        return None

    @abstractmethod
    def notices(self) -> list[bytes]:
        """See `Transport.notices`."""

    @abstractmethod
    def _register(self, own: Ranges) -> tuple[str, bytes]:
        """Register with the library; returns how a peer reaches this process: a session and a blob."""

    @abstractmethod
    def _connect(self, peer: RemotePeer) -> None:
        """Make the peer known to the library."""

    @abstractmethod
    def _disconnect(self, peer: RemotePeer) -> None:
        """Forget a peer; its moves fail with `PeerGone`."""

    @abstractmethod
    def _start(self, peer: RemotePeer, move: Move) -> None:
        """Give the move to the thread that drives it."""

    @abstractmethod
    def _close(self) -> None:
        """End threads, give memory back."""
