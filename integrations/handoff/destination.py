"""The decode side of KV moves: rooms are expected, sources come for them, their pages become readable."""

import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self

import numpy as np

from kvferry.integrations.handoff.arrival import Arrival
from kvferry.integrations.handoff.channel import Channel
from kvferry.integrations.handoff.expected import Expected
from kvferry.integrations.handoff.incoming import Incoming
from kvferry.integrations.handoff.messages import VERSION, ToDestination, Welcome
from kvferry.integrations.handoff.own import Own
from kvferry.integrations.handoff.pages import Pages, PageState
from kvferry.integrations.handoff.rooms import Rooms
from kvferry.integrations.handoff.scales import Scales
from kvferry.integrations.handoff.slots import Slots
from kvferry.integrations.transports.base import Transport
from kvferry.integrations.transports.kernels.fp8 import FP8
from kvferry.integrations.transports.kernels.tensors import torch
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec

__all__ = ["Destination"]

log = logging.getLogger(__name__)

SLOT_BYTES = 16 * 2**20
MOST_CONNECTIONS = 512


class Destination:
    """Where sources write. Its methods may be called from any thread."""

    def __init__(
        self,
        transport: Transport,
        worker: Sequence[PoolSpec],
        pools: Mapping[int, KVPool],
        *,
        agent: str = "destination",
        host: str = "127.0.0.1",
        port: int = 0,
        slots: int = 4,
        slot_bytes: int = SLOT_BYTES,
        quarantine_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Register `pools`, by rank, those of `worker`'s ranks that this process has, and listen for sources.

        The pools are touched: nobody may write them meanwhile. `transport` must have no regions yet; it is
        this destination's from here on, and closed with it. `port` 0 takes a free one. `slots` slots of
        `slot_bytes` bytes (rounded up to 64) are what staged moves are written into. A page or slot that a
        failed move may still write comes back when its source says so, or after `quarantine_s` seconds.
        Raises ValueError for pools that are not the worker's, `Refused` as the transport does, OSError for
        a port that is taken.
        """
        self._own = Own(worker, pools, slots, slot_bytes)
        for pool in self._own.pools.values():
            pool.touch()
        here = tuple(self._own.pools)
        self._spec = self._own.worker[here[0]]
        self._listener = socket.create_server((host, port), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        try:
            metadata = transport.register(self._own.regions)
        except BaseException:
            self._listener.close()
            raise
        self._transport = transport
        self._welcome = Welcome(
            VERSION,
            agent,
            transport.name,
            metadata,
            self._own.worker,
            here,
            slots,
            self._own.slots.slot_bytes,
        )
        self._rooms = Rooms(Pages(self._spec.pages), Slots(slots), here, quarantine_s, clock)
        self._keys = itertools.count()
        self._lock = threading.Lock()
        self._closed = False
        self._incoming: set[Incoming] = set()
        self._thread = threading.Thread(target=self._accept, name="kvferry-handoff-accept", daemon=True)
        self._thread.start()

    def expect(
        self, room: int, at: Place, tokens: int, *, verify: bool = False, scales: Scales | None = None
    ) -> Arrival:
        """`tokens` tokens will come to `at`, in every rank that this process has, from whoever names `room`.

        `verify`: every page is checked against its source. `scales`: float32 [layer, K/V, head] by rank,
        which the values of fp8 pools must be in. `Impossible` for a place that is not in the pool, `Refused`
        for a room that is expected, or naming the first page that is not free; ValueError for other scales.
        """
        if tokens < 1:
            raise Impossible(f"{tokens} tokens to expect, must be at least 1")
        at.check(self._spec, tokens, "destination", written=True)
        wanted = self._checked(scales or {})
        made = {
            rank: torch.ones(pool.spec.layers, 2, pool.spec.heads, device=pool.device)
            for rank, pool in self._own.pools.items()
            if pool.spec.dtype in FP8
        }
        size = self._spec.page_size
        at = Place(at.used(size, tokens), at.first % size)  # what lies before it is of no interest
        expected = Expected(room, at, tokens, verify, wanted, made)
        arrival = Arrival(expected, f"{room}/{next(self._keys)}", self._rooms.give_up)
        self._rooms.expect(arrival)
        return arrival

    def release(self, pages: Iterable[int]) -> None:
        """Readable pages are needed no more. `Refused`, naming the first that is not readable."""
        self._rooms.release(np.fromiter(pages, np.int64))

    def free_pages(self) -> frozenset[int]:
        """Pages that `expect` would take."""
        return self._rooms.those(PageState.FREE)

    def readable(self) -> frozenset[int]:
        """Pages that have arrived and were not released."""
        return self._rooms.those(PageState.READABLE)

    def quarantined(self) -> frozenset[int]:
        """Pages that a failed move may still write."""
        return self._rooms.those(PageState.QUARANTINED)

    def close(self) -> None:
        """Give up what is expected, end connections, threads and the transport. Again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._rooms.close()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._thread.join()
        self._listener.close()
        with self._lock:
            incoming = tuple(self._incoming)
        for each in incoming:
            each.close()
        # Before the memory goes: a peer may still write it.
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
                channel: Channel[ToDestination] = Channel(connection, ToDestination)
            except OSError as error:
                if self._closed:
                    return
                log.warning("accept: %s", error)  # out of descriptors, or a peer that went away already
                time.sleep(0.1)
                continue
            with self._lock:
                connections = len(self._incoming)
                try:
                    if connections < MOST_CONNECTIONS:
                        wake = self._transport.notices  # of which no one sends any here
                        self._incoming.add(
                            Incoming(channel, self._own, self._welcome, self._rooms, wake, self._ended)
                        )
                        continue
                except RuntimeError as error:  # no thread is to be had
                    log.warning("a connection: %s", error)
            log.warning("refused a connection: there are %d", connections)
            channel.close()

    def _ended(self, incoming: Incoming) -> None:
        with self._lock:
            self._incoming.discard(incoming)

    def _checked(self, scales: Scales) -> Scales:
        for rank, given in scales.items():
            pool = self._own.pools.get(rank)
            if pool is None or pool.spec.dtype not in FP8:
                raise ValueError(f"scales of rank {rank}, which has no fp8 pool here")
            shape = (pool.spec.layers, 2, pool.spec.heads)
            if tuple(given.shape) != shape or not bool(((given > 0) & torch.isfinite(given)).all()):
                raise ValueError(f"scales of rank {rank} must be {shape}, positive and finite")
        return {rank: given.to(self._own.pools[rank].device, torch.float32) for rank, given in scales.items()}
