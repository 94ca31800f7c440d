"""Moves over NIXL (UCX): one thread makes every call that moves bytes, and pumps when nothing moves.

NIXL's own progress thread spins a whole core while idle, so it stays off, and `Pump` polls with backoff
instead: a peer that does not pump is a peer into which nobody can wire up.
"""

import importlib
import logging
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kvferry.integrations.transports.errors import Missing, PeerGone, Refused
from kvferry.integrations.transports.executor import Executor, RemotePeer
from kvferry.integrations.transports.move import Move
from kvferry.integrations.transports.nixl_pump import MEMORY, Pump
from kvferry.integrations.transports.ranges import Ranges

__all__ = ["Nixl"]

RDMA_DEVICES = Path("/sys/class/infiniband")
CONTACT_S = 5.0
ASK_S = 5e-4

log = logging.getLogger(__name__)


class Nixl(Executor):
    """`Transport` over `nixl._api`. Raises `Missing` where that does not load.

    UCX reads its settings (UCX_TLS, UCX_NET_DEVICES, UCX_MODULES) from the environment; `host` is not used.
    """

    name: ClassVar[str] = "nixl"
    part_bytes: ClassVar[int] = 64 * 2**20

    def __init__(self, agent: str, host: str = "127.0.0.1") -> None:
        if not RDMA_DEVICES.is_dir():
            # UCX's module for RDMA, of no use here, makes the process die of a signal when it exits.
            os.environ.setdefault("UCX_MODULES", "^ib")
        # Standard output is the caller's.
        os.environ.setdefault("UCX_LOG_FILE", "stderr")
        try:
            api = importlib.import_module("nixl._api")
        except ImportError as error:
            raise Missing(
                f"nixl does not load: pip install --no-deps nixl nixl-cu12 (or nixl-cu13) ({error})"
            ) from error
        if "NIXL_LOG_LEVEL" not in os.environ:
            logging.getLogger("nixl").setLevel(logging.WARNING)
        super().__init__(agent, host)
        config = api.nixl_agent_config(backends=[], enable_prog_thread=False)
        self._library: Any = api.nixl_agent(self.agent, config)
        self._library.create_backend("UCX", {})
        # First contacts read a byte of the peer's into this: host memory on both sides, that no one minds.
        self._scratch = np.zeros(64, np.uint8)
        place = (self._scratch.ctypes.data, self._scratch.size, 0, "")
        self._memory = [self._library.register_memory([place], "DRAM")]
        self._pump = Pump(self._library)

    def notices(self) -> list[bytes]:
        return self._pump.notices()

    def _register(self, own: Ranges) -> tuple[str, bytes]:
        regions = [(region.address, region.nbytes, region.device, "") for region in own.regions]
        with self._pump.library_lock:
            self._memory.append(self._library.register_memory(regions, MEMORY[own.kind]))
            return str(self._scratch.ctypes.data), self._library.get_agent_metadata()

    def _connect(self, peer: RemotePeer) -> None:
        with self._pump.library_lock:
            try:
                added = self._library.add_remote_agent(peer.metadata.blob)
            except Exception as error:
                # NIXL's errors share no base of their own; whatever it was, this peer cannot be reached.
                log.debug("add_remote_agent: %r", error)
                raise PeerGone(f"{peer.name}: nixl cannot add it: {error}") from error
            if added not in (peer.metadata.agent, peer.metadata.agent.encode()):
                self._library.remove_remote_agent(added)
                raise Refused(f"{peer.name}: its metadata names two agents")
        self._meet(peer)

    def _meet(self, peer: RemotePeer) -> None:
        """Read a byte of the peer's: NIXL connects in the first transfer, and waits there for ever."""
        asked, until_s = None, time.monotonic() + CONTACT_S
        try:
            with self._pump.library_lock:
                here, there = (
                    self._library.get_xfer_descs([(address, 1, 0)], "DRAM")
                    for address in (self._scratch.ctypes.data, int(peer.metadata.session))
                )
                asked = self._library.initialize_xfer("READ", here, there, peer.metadata.agent)
                state = self._library.transfer(asked)
            while state == "PROC" and time.monotonic() < until_s:
                self._pump.wake()
                time.sleep(ASK_S)
                with self._pump.library_lock:
                    state = self._library.check_xfer_state(asked)
        except Exception as error:
            # As in `_connect`.
            log.debug("first contact", exc_info=True)
            state = f"{error or type(error).__name__}"
        with self._pump.library_lock:
            if asked is not None:
                self._pump.drop_handle(asked)
            if state != "DONE":
                why = f"did not answer in {CONTACT_S:g} s" if state == "PROC" else f"cannot be read ({state})"
                gone = PeerGone(f"{peer.name}: {why}")
                self._pump.forget(peer, gone)
                raise gone

    def _disconnect(self, peer: RemotePeer) -> None:
        self._pump.forget(peer, PeerGone(f"{peer.name} was replaced"))

    def _start(self, peer: RemotePeer, move: Move) -> None:
        assert self.own is not None
        self._pump.put(peer, self.own, move)

    def _close(self) -> None:
        self._pump.stop()
        with self._pump.library_lock:
            for peer in self._peers.values():
                self._pump.forget(peer, Refused("the transport was closed"))
            for registered in self._memory:
                self._library.deregister_memory(registered)
            self._memory.clear()
            self._library = None
        self._pump.release()
