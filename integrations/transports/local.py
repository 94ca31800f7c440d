"""Copies within a process, or into memory that both processes share: the reference that needs no library.

A region in a shared file (`multiprocessing.shared_memory`, a memfd has no name and does not count) is found
in /proc/self/maps and mapped by the other process. Notices are datagrams to an abstract Unix socket.
"""

import ctypes
import mmap
import os
import queue
import socket
import threading
from typing import ClassVar

import numpy as np

from kvferry.integrations.transports.base import Region
from kvferry.integrations.transports.errors import PeerGone, Refused, Wedged
from kvferry.integrations.transports.executor import Executor, RemotePeer
from kvferry.integrations.transports.move import Move
from kvferry.integrations.transports.ranges import Ranges

__all__ = ["Local"]

NOTICE_BYTES = 64 * 1024


class Local(Executor):
    """`Transport` by memmove in one thread."""

    name: ClassVar[str] = "local"
    kinds: ClassVar[frozenset[str]] = frozenset({"cpu"})
    part_bytes: ClassVar[int] = 16 * 2**20

    def __init__(self, agent: str, host: str = "127.0.0.1") -> None:
        super().__init__(agent, host)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(_socket_name(self.agent))
        self._maps: dict[RemotePeer, list[mmap.mmap]] = {}
        self._shifts: dict[RemotePeer, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        self._moves: queue.SimpleQueue[tuple[RemotePeer, Move] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvferry-local", daemon=True)
        self._thread.start()

    def notices(self) -> list[bytes]:
        arrived = []
        try:
            while not self._closed:
                if notice := self._socket.recv(NOTICE_BYTES):  # an empty one only asked whether we are there
                    arrived.append(notice)
        except BlockingIOError:
            pass
        return arrived

    def _register(self, own: Ranges) -> tuple[str, bytes]:
        return str(os.getpid()), b""

    def _backing(self, region: Region) -> tuple[str, int] | None:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            for line in maps:
                span, access, offset, _, _, *path = line.split(maxsplit=5)
                first, end = (int(address, 16) for address in span.split("-"))
                if first <= region.address < end:
                    shared = access[3] == "s" and path and region.end <= end
                    return (path[0].strip(), int(offset, 16) + region.address - first) if shared else None
        return None

    def _connect(self, peer: RemotePeer) -> None:
        try:
            self._socket.sendto(b"", _socket_name(peer.metadata.agent))
        except ConnectionRefusedError as error:
            raise PeerGone(f"{peer.name}: nobody is there") from error
        except BlockingIOError:
            pass  # it has more notices than it reads: it is there
        described = peer.metadata.regions
        shifts = np.zeros(len(described), np.int64)
        maps = []
        if peer.metadata.session != str(os.getpid()):
            for index, region in enumerate(described):
                if region.backing is None:
                    raise Refused(f"{peer.name}: its region {index} is not in shared memory")
                mapped = _map(region.backing, region.nbytes)
                here = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
                shifts[index] = here + region.backing[1] % mmap.ALLOCATIONGRANULARITY - region.address
                maps.append(mapped)
        self._maps[peer], self._shifts[peer] = maps, shifts

    def _disconnect(self, peer: RemotePeer) -> None:
        self._shifts.pop(peer, None)
        self._maps.pop(peer, None)  # unmapped with the last reference, which a running copy may hold

    def _start(self, peer: RemotePeer, move: Move) -> None:
        self._moves.put((peer, move))

    def _close(self) -> None:
        self._moves.put(None)
        self._thread.join()
        self._socket.close()
        self._shifts.clear()
        self._maps.clear()

    def _run(self) -> None:
        while (job := self._moves.get()) is not None:
            self._drive(*job)

    def _drive(self, peer: RemotePeer, move: Move) -> None:
        maps, shifts = self._maps.get(peer), self._shifts.get(peer)
        if maps is None or shifts is None:
            return move.lost(PeerGone(f"{peer.name} was replaced"), taken=False)
        while (taken := move.take()) is not None:
            part = taken[0]
            region = peer.ranges.find("destination", part.dst_addresses, part.nbytes)
            targets = (part.dst_addresses + shifts[region]).tolist()
            for target, source, nbytes in zip(
                targets, part.src_addresses.tolist(), part.nbytes.tolist(), strict=True
            ):
                ctypes.memmove(target, source, nbytes)
            if move.landed(part, 0.0):
                self._finish(peer, move)
        return None

    def _finish(self, peer: RemotePeer, move: Move) -> None:
        try:
            if move.notice:
                self._socket.sendto(move.notice, _socket_name(peer.metadata.agent))
            move.finish()
        except ConnectionRefusedError:
            move.lost(PeerGone(f"{peer.name}: nobody is there"), taken=False)
        except OSError as error:
            move.lost(Wedged(f"{peer.name}: the notice was not taken: {error}"), taken=False)


def _socket_name(agent: str) -> str:
    return f"\0kvferry-{agent}"


def _map(backing: tuple[str, int], nbytes: int) -> mmap.mmap:
    path, offset = backing
    if not path.startswith("/dev/shm/") or ".." in path:
        raise Refused(f"{path} is not shared memory")
    before = offset % mmap.ALLOCATIONGRANULARITY
    try:
        with open(path, "r+b") as shared:
            return mmap.mmap(shared.fileno(), before + nbytes, offset=offset - before)
    except (OSError, ValueError) as error:
        raise Refused(f"{path} cannot be mapped: {error}") from error
