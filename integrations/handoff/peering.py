"""A source's end of the way to one destination process: its control channel and its memory."""

import itertools
import logging
import threading
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from kvferry.integrations.handoff.channel import Channel, connect
from kvferry.integrations.handoff.messages import VERSION, Hello, Message, No, ToSource, Welcome
from kvferry.integrations.transports.base import Peer, Transport
from kvferry.integrations.transports.errors import PeerGone, Refused, TransportError
from kvferry.models.moves.place import Place
from kvferry.models.moves.plan import Move
from kvferry.models.moves.pool_spec import Ints
from kvferry.models.moves.relate import head_routes, relate

__all__ = ["Listener", "Peering", "open_peering"]

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who waits for what the destination says of one move."""

    def told(self, message: ToSource) -> None:
        """A message that names the move."""

    def lost(self, error: TransportError) -> None:
        """Nothing more will come."""


class Peering:
    """Made by `open_peering`. One thread reads what the destination says, for the move's listener.

    `bases` are the addresses of each destination rank's regions.
    """

    def __init__(
        self, name: str, hello: Hello, welcome: Welcome, peer: Peer, channel: Channel[ToSource]
    ) -> None:
        self.name = name
        self.peer = peer
        self.worker = welcome.worker
        self.here = welcome.here
        self.slots, self.slot_bytes = welcome.slots, welcome.slot_bytes
        self._own = hello.worker
        self._pairs = tuple(
            (give, take, heads, relate(hello.worker[give], welcome.worker[take]))
            for give, take, heads in head_routes(hello.worker, welcome.worker)
            if give in hello.here and take in welcome.here
        )
        if not self._pairs:
            raise Refused(f"{name}: its ranks get everything from other ranks than {hello.here}")
        self.bases, self._slots_address = _regions(peer, welcome)
        self.closing = threading.Event()
        self._channel = channel
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._listeners: dict[int, Listener] = {}
        self._gone: TransportError | None = None
        self._reader = threading.Thread(target=self._read, name=f"kvferry-from-{name}", daemon=True)
        self._reader.start()

    @property
    def gone(self) -> TransportError | None:
        """Why there is no way to the destination any more, None while there is one."""
        return self._gone

    def add(self, listener: Listener) -> int:
        """A number for a new move; raises `PeerGone`."""
        with self._lock:
            if self._gone is not None:
                raise PeerGone(str(self._gone))
            number = next(self._numbers)
            self._listeners[number] = listener
        return number

    def remove(self, number: int) -> None:
        """The move is over: what still comes for it is dropped."""
        with self._lock:
            self._listeners.pop(number, None)

    def send(self, message: Message) -> None:
        """Raises `PeerGone`."""
        self._channel.send(message)

    def moves(self, src_at: Place, dst_at: Place, tokens: int) -> tuple[Move, ...]:
        """As `plan`, between ranks that this process and the destination have; `src_at` is checked.

        Who gives which heads to whom does not change: finding it takes as long as 1 MiB on the wire.
        `Impossible` for a destination outside its pools.
        """
        dst_at.check(self.worker[0], tokens, "destination", written=True)
        return tuple(
            Move(give, take, self._own[give], self.worker[take], src_at, dst_at, tokens, heads, relation)
            for give, take, heads, relation in self._pairs
        )

    def slot_address(self, slot: int) -> int:
        """Where a slot of the destination begins; `Refused` for one that it does not have."""
        if not 0 <= slot < self.slots:
            raise Refused(f"{self.name}: slot {slot} of {self.slots}")
        return self._slots_address + slot * self.slot_bytes

    def close(self, reason: str = "the peering was closed") -> None:
        """Moves under way fail with `PeerGone`. Calling it again does nothing."""
        self._lose(PeerGone(f"{self.name}: {reason}"))
        self._channel.close()
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def _read(self) -> None:
        try:
            while True:
                message = self._channel.receive()
                if isinstance(message, Welcome):
                    raise Refused("the destination said Welcome twice")
                with self._lock:
                    listener = self._listeners.get(message.move)
                if listener is not None:
                    listener.told(message)
        except TransportError as error:
            self._lose(PeerGone(f"{self.name}: {error}"))
        except Exception as error:
            # A mistake here: whoever waits has to learn that nothing more is read.
            log.exception("what %s says", self.name)
            self._lose(PeerGone(f"{self.name}: {type(error).__name__}: {error}"))

    def _lose(self, error: PeerGone) -> None:
        with self._lock:
            if self._gone is not None:
                return
            self._gone = error
            listeners = tuple(self._listeners.values())
        self.closing.set()
        for listener in listeners:
            listener.lost(error)


def open_peering(
    name: str, host: str, port: int, transport: Transport, hello: Hello, timeout_s: float
) -> Peering:
    """Say `hello` to a destination and learn of its memory.

    Raises `PeerGone`, `DeadlinePassed`, `Refused` for another version, transport or memory than it claims,
    `Impossible` where its layout allows no move.
    """
    channel: Channel[ToSource] = Channel(connect(host, port, timeout_s), ToSource)
    try:
        channel.send(hello)
        welcome = channel.receive(timeout_s)
        if isinstance(welcome, No):
            raise Refused(f"{name}: {welcome.reason}")
        if not isinstance(welcome, Welcome):
            raise Refused(f"{name}: {type(welcome).__name__} in answer to Hello")
        if welcome.version != VERSION:
            raise Refused(f"{name} speaks version {welcome.version} of the handoff, this is {VERSION}")
        if welcome.transport != transport.name:
            raise Refused(f"{name} is reached over {welcome.transport}, this is {transport.name}")
        return Peering(name, hello, welcome, transport.connect(name, welcome.metadata), channel)
    except BaseException:
        channel.close()
        raise


def _regions(peer: Peer, welcome: Welcome) -> tuple[Mapping[int, Ints], int]:
    """Addresses of each rank's regions, and of the slots; `Refused` where they are not what the pools say."""
    if any(not 0 <= rank < len(welcome.worker) for rank in welcome.here):
        raise Refused(f"{peer.name}: ranks {welcome.here} of {len(welcome.worker)}")
    wanted = [nbytes for rank in welcome.here for nbytes in welcome.worker[rank].region_bytes]
    found = [region.nbytes for region in peer.regions]
    if found[:-1] != wanted or found[-1] < welcome.slots * welcome.slot_bytes:
        raise Refused(f"{peer.name}: its {len(found)} regions are not its pools and {welcome.slots} slots")
    addresses = np.array([region.address for region in peer.regions], dtype=np.int64)
    bases, first = {}, 0
    for rank in welcome.here:
        end = first + len(welcome.worker[rank].region_bytes)
        bases[rank] = addresses[first:end]
        first = end
    return bases, int(addresses[-1])
