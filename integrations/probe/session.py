"""A transport with its memory and its peers, as long as one probe needs them."""

import time

from kvferry.integrations.probe.memory import Memory
from kvferry.integrations.probe.messages import Moved, Open, Opened, Wanted
from kvferry.integrations.probe.moves import Mover
from kvferry.integrations.probe.registration import line, timed, trials
from kvferry.integrations.transports.base import Peer, Transport
from kvferry.integrations.transports.errors import Refused
from kvferry.integrations.transports.registry import open_transport
from kvferry.models.paths.sample import Sample

__all__ = ["Session"]

FIRST_BYTES, LATER_MOVES = 4096, 5
# Warms up what a first large move pays for once: buffers of sockets, windows, a lane's thread.
WARM_BYTES = 2**20


class Session:
    """Blocking; may be called from any thread.

    The constructor raises `Missing` for a library that does not load and `Refused` for an unknown transport,
    a device or memory that there is not.
    """

    def __init__(self, name: str, agent: str, asked: Open, host: str) -> None:
        self.name = name
        self._agent, self._host, self._transport_name = agent, host, asked.transport
        self._peers: dict[str, Peer] = {}
        self._transport = self._open()
        try:
            self.memory = Memory(asked.nbytes, asked.device, shared=asked.transport == "local")
        except BaseException:
            self._transport.close()
            raise
        try:
            tried = trials(self._open, self.memory.region)
            metadata, took_s = timed(self._transport, self.memory.region)
        except BaseException:
            self._transport.close()
            self.memory.close()
            raise
        registration_s, s_per_byte = line([*tried, (asked.nbytes, took_s)])
        self.opened = Opened(name, metadata, registration_s, s_per_byte)
        self._mover = Mover(self._transport, self.memory.region)

    def connect(self, name: str, metadata: bytes, deadline_s: float) -> float:
        """What the first contact costs, s; a known name is connected anew. Raises `TransportError`."""
        began_s = time.monotonic()
        peer = self._peers[name] = self._transport.connect(name, metadata)
        connect_s = time.monotonic() - began_s
        first_s = self._mover.alone(peer, FIRST_BYTES, 1, deadline_s).total_s
        later = [self._mover.alone(peer, FIRST_BYTES, 1, deadline_s).total_s for _ in range(LATER_MOVES)]
        if peer.regions[0].nbytes >= WARM_BYTES <= self.memory.nbytes:
            self._mover.alone(peer, WARM_BYTES, 16, deadline_s)
        return max(connect_s + first_s - sorted(later)[LATER_MOVES // 2], 0.0)

    def move(self, peer_name: str, wanted: Wanted, deadline_s: float) -> list[Moved]:
        """One move, or the moves at once. Raises `TransportError`."""
        if (peer := self._peers.get(peer_name)) is None:
            raise Refused(f"no peer {peer_name!r}: connect first")
        what = wanted.moved_bytes, wanted.descriptors
        samples: list[Sample]
        if wanted.concurrency == 1:
            samples = [self._mover.alone(peer, *what, deadline_s)]
        else:
            samples = self._mover.crowd(peer, *what, wanted.concurrency, deadline_s)
        return [Moved(s.moved_bytes, s.descriptors, s.total_s, s.concurrency) for s in samples]

    def wake(self) -> None:
        """Have the transport look for what arrives; never blocks."""
        self._transport.notices()

    def close(self) -> None:
        """Give up what runs and close the transport; the memory is the caller's to close."""
        self._transport.close()

    def _open(self) -> Transport:
        return open_transport(self._transport_name, self._agent, self._host)
