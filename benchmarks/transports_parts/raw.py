"""The libraries without kvferry, as fast as they can be called: what the executor is compared with.

A `Raw` has its own engine or agent over the caller's memory. `prepared` does what a caller can do once,
before the clock starts; what it returns moves the batch and is back when the library says that it is done.
"""

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from kvferry.integrations.transports.base import Batch

# What Mooncake's lane to a peer takes at once without breaking.
MOONCAKE_DESCRIPTORS = 1024
MoveIt = Callable[[], None]


class Raw(Protocol):
    """One side of a library's own connection between two processes."""

    @property
    def session(self) -> str:
        """What the other side's `meet` needs."""

    def meet(self, session: str) -> None:
        """Make the other side known."""

    def prepared(self, batch: Batch) -> MoveIt:
        """The batch, ready to be moved any number of times."""

    def pump(self) -> bool:
        """Let the library make progress where another side writes here; False where its threads do that."""

    def close(self) -> None:
        """Give the memory back."""


class RawMooncake:
    def __init__(self, agent: str, address: int, nbytes: int) -> None:
        self._engine: Any = importlib.import_module("mooncake.engine").TransferEngine()
        if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("mooncake: no engine")
        self._address = address
        self._engine.register_memory(address, nbytes)
        self._session = ""

    @property
    def session(self) -> str:
        return f"127.0.0.1:{self._engine.get_rpc_port()}"

    def meet(self, session: str) -> None:
        self._session = session

    def prepared(self, batch: Batch) -> MoveIt:
        calls = []
        for first in range(0, len(batch), MOONCAKE_DESCRIPTORS):
            part = batch.part(first, first + MOONCAKE_DESCRIPTORS)
            calls.append([each.tolist() for each in (part.src_addresses, part.dst_addresses, part.nbytes)])
        write, session = self._engine.batch_transfer_sync_write, self._session

        def move() -> None:
            for lists in calls:
                if write(session, *lists) != 0:
                    raise RuntimeError("mooncake: the raw call failed")

        return move

    def pump(self) -> bool:
        return False

    def close(self) -> None:
        self._engine.unregister_memory(self._address)


class RawNixl:
    def __init__(self, agent: str, address: int, nbytes: int) -> None:
        # The transport, which is opened first, has seen to UCX's settings.
        api = importlib.import_module("nixl._api")
        self._agent: Any = api.nixl_agent(agent, api.nixl_agent_config(backends=[], enable_prog_thread=False))
        self._agent.create_backend("UCX", {})
        self._memory = self._agent.register_memory([(address, nbytes, 0, "")], "DRAM")
        self._peer = ""

    @property
    def session(self) -> str:
        return bytes(self._agent.get_agent_metadata()).hex()

    def meet(self, session: str) -> None:
        self._peer = self._agent.add_remote_agent(bytes.fromhex(session))

    def prepared(self, batch: Batch) -> MoveIt:
        agent, at = self._agent, np.arange(len(batch), dtype=np.int32)
        nowhere = np.zeros(len(batch), np.int64)
        lists = [
            agent.prep_xfer_dlist(
                name, np.stack([addresses, batch.nbytes, nowhere], axis=1).astype(np.uint64), "DRAM"
            )
            for name, addresses in (("", batch.src_addresses), (self._peer, batch.dst_addresses))
        ]
        handle = agent.make_prepped_xfer("WRITE", lists[0], at, lists[1], at)

        def move() -> None:
            state = agent.transfer(handle)
            while state == "PROC":
                state = agent.check_xfer_state(handle)
            if state != "DONE":
                raise RuntimeError(f"nixl: the raw transfer is {state}")

        return move

    def pump(self) -> bool:
        self._agent.get_new_notifs()
        return True

    def close(self) -> None:
        self._agent.deregister_memory(self._memory)


RAW: dict[str, Callable[[str, int, int], Raw]] = {"mooncake": RawMooncake, "nixl": RawNixl}
