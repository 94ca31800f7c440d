"""Moves over Mooncake's transfer engine: one thread and at most one call per peer.

The engine's TCP lane to a peer holds 1024 + 1024 descriptors and stays broken when more are pushed into it,
so one thread per peer posts parts of at most 1,024, one after the other. The call cannot be interrupted: a
caller's deadline ends the caller's wait, the thread stays in the call until the engine's own time-out. A lane
whose call failed or does not come back is dropped, and the next move to that peer gets a fresh engine. The
first engine lives on: peers hold its port and write through it.
"""

import base64
import importlib
import logging
import os
import socket
import time
from typing import Any, ClassVar

import numpy as np

from kvferry.integrations.transports.errors import Missing, PeerGone, Refused, Wedged
from kvferry.integrations.transports.executor import Executor, RemotePeer
from kvferry.integrations.transports.mooncake_lane import Lane
from kvferry.integrations.transports.move import Move
from kvferry.integrations.transports.ranges import Ranges

__all__ = ["Mooncake"]

log = logging.getLogger(__name__)

ENGINE_TIMEOUT_S = 5  # the least that Mooncake takes
CONTACT_S = 5.0
ADDRESS_DIGITS = 19
STUCK_S = 2.0
MAX_STUCK = 2


class Mooncake(Executor):
    """`Transport` over `mooncake.engine`. Raises `Missing` where that does not load."""

    name: ClassVar[str] = "mooncake"

    def __init__(self, agent: str, host: str = "127.0.0.1") -> None:
        # Both are read when the library loads: a caller who set them knows better.
        os.environ.setdefault("MC_TRANSFER_TIMEOUT", str(ENGINE_TIMEOUT_S))
        os.environ.setdefault("GLOG_minloglevel", "2")
        try:
            engine = importlib.import_module("mooncake.engine")
        except ImportError as error:
            raise Missing(
                "mooncake does not load: pip install --no-deps mooncake-transfer-engine-non-cuda "
                f"(or mooncake-transfer-engine with CUDA) and apt install libibverbs1 ({error})"
            ) from error
        super().__init__(agent, host)
        self._library = engine
        # First contacts read a byte of the peer's into this: host memory on both sides, that no one minds.
        self._scratch = np.zeros(64, np.uint8)
        self._first = self._engine()
        self._scouts: list[Any] = []
        self._lanes: dict[RemotePeer, Lane] = {}
        self._left: list[tuple[RemotePeer, Lane]] = []

    def notices(self) -> list[bytes]:
        if self._closed:
            return []
        return [base64.b64decode(note.msg) for note in self._first.get_notifies() if note.name == "kvferry"]

    def _engine(self, spare: bool = False) -> Any:
        engine = self._library.TransferEngine()
        if engine.initialize(self.host, "P2PHANDSHAKE", "tcp", "") != 0:
            raise Refused(f"mooncake: no engine at {self.host}")
        engine.register_memory(self._scratch.ctypes.data, self._scratch.size)
        if self.own is not None and not spare:
            self._give(engine, self.own)
        return engine

    def _give(self, engine: Any, own: Ranges) -> None:
        addresses = [region.address for region in own.regions]
        if engine.batch_register_memory(addresses, [region.nbytes for region in own.regions]) != 0:
            raise Refused("mooncake: the engine did not take the regions")

    def _register(self, own: Ranges) -> tuple[str, bytes]:
        self._give(self._first, own)
        return f"{self.host}:{self._first.get_rpc_port()}", b"%d" % self._scratch.ctypes.data

    def _connect(self, peer: RemotePeer) -> None:
        if not self._listens(peer):
            raise PeerGone(f"{peer.name}: nobody listens at {peer.metadata.session}")
        if not peer.metadata.blob.isdigit() or len(peer.metadata.blob) > ADDRESS_DIGITS:
            raise Refused(f"{peer.name}: its metadata names no address to read")
        # An engine that meets a stopped peer stands still for a minute, for other peers as well: one that
        # nobody needs goes first, and is kept: all of Python waits for the second that an engine's end takes.
        with self._lock:
            engine = self._scouts.pop() if self._scouts else None
        engine = engine or self._engine(spare=True)
        self._leave(peer, self._met(peer, engine))
        with self._lock:
            self._open()
            self._scouts.append(engine)
            first = self._first
        self._lanes[peer] = self._met(peer, first)

    def _met(self, peer: RemotePeer, engine: Any) -> Lane:
        lane = self._lane(peer, engine)
        if not lane.met.wait(CONTACT_S) or lane.broken:
            self._leave(peer, lane)
            raise PeerGone(f"{peer.name}: {peer.metadata.session} did not answer")
        return lane

    def _disconnect(self, peer: RemotePeer) -> None:
        if (lane := self._lanes.pop(peer, None)) is not None:
            self._leave(peer, lane)

    def _start(self, peer: RemotePeer, move: Move) -> None:
        lane = self._lanes.get(peer)
        if lane is not None and (lane.broken or lane.stuck_s() > STUCK_S):
            self._leave(peer, self._lanes.pop(peer))
            lane = None
        if lane is None:
            if sum(left is peer for left, _ in self._left) >= MAX_STUCK:
                raise Wedged(f"{peer.name}: {MAX_STUCK} engines hang in it already")
            log.warning("mooncake: a fresh engine for %s", peer.name)
            lane = self._lanes[peer] = self._lane(peer, self._engine())
        lane.put(move)

    def _lane(self, peer: RemotePeer, engine: Any) -> Lane:
        contact = self._scratch.ctypes.data, int(peer.metadata.blob)
        return Lane(engine, self._library, peer.metadata.session, contact, lambda: self._why(peer))

    def _leave(self, peer: RemotePeer, lane: Lane) -> None:
        lane.stop(
            PeerGone(f"{peer.name} was replaced") if peer.gone else Wedged(f"{peer.name}: engine replaced")
        )
        self._left = [(of, left) for of, left in (*self._left, (peer, lane)) if left.is_alive()]

    def _why(self, peer: RemotePeer) -> PeerGone | Wedged:
        if self._listens(peer):
            return Wedged(f"{peer.name}: mooncake gave the move up, though the peer's port answers")
        return PeerGone(f"{peer.name}: the move failed and nobody listens at {peer.metadata.session}")

    @staticmethod
    def _listens(peer: RemotePeer) -> bool:
        # Mooncake's own send_probe takes up to a minute over a stopped peer.
        host, _, port = peer.metadata.session.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
                return True
        except (OSError, ValueError):
            return False

    def _close(self) -> None:
        lanes = [lane for _, lane in self._left] + list(self._lanes.values())
        for lane in lanes:
            lane.stop(Refused("the transport was closed"))
        until_s = time.monotonic() + ENGINE_TIMEOUT_S + 1.0
        for lane in lanes:
            lane.join(max(0.0, until_s - time.monotonic()))
        if hung := sum(lane.is_alive() for lane in lanes):
            log.warning("mooncake: %d calls into peers that do not answer still run at close", hung)
        own = self.own.regions if self.own is not None else ()
        self._first.batch_unregister_memory([self._scratch.ctypes.data, *(region.address for region in own)])
        self._lanes.clear()
        self._left.clear()
        self._scouts.clear()
        self._first = None
