import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from kvferry.integrations.transports.base import Batch, Peer, Region, Transport
from kvferry.integrations.transports.errors import Missing
from kvferry.integrations.transports.registry import open_transport

PEER = Path(__file__).with_name("transport_peer.py")
POOL_BYTES = 64 * 2**20
WAYS = {
    "local": ("local", {}),
    "mooncake": ("mooncake", {}),
    "nixl-cma": ("nixl", {"UCX_TLS": "tcp,cma,self", "UCX_NET_DEVICES": "lo"}),
    "nixl-tcp": ("nixl", {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}),
}


class Memory:
    def __init__(self) -> None:
        self.shared = shared_memory.SharedMemory(create=True, size=POOL_BYTES)
        self.pool = np.frombuffer(self.shared.buf, np.uint8)
        self.pool[:] = 0

    @property
    def address(self) -> int:
        return int(self.pool.ctypes.data)

    def free(self) -> None:
        del self.pool
        self.shared.close()
        self.shared.unlink()


class Process:
    """A peer: its pool is mapped here too, so that what landed can be read without asking it."""

    def __init__(self, transport_name: str, agent: str, environment: dict[str, str]) -> None:
        self.memory = Memory()
        self._process = subprocess.Popen(
            [sys.executable, str(PEER), transport_name, agent, self.memory.shared.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        said = self._read()
        self.metadata, self.address = bytes.fromhex(said["metadata"]), int(said["address"])

    def _read(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise AssertionError("the peer died")

    def ask(self, what: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._read()

    def notices(self, wanted: int) -> list[bytes]:
        found: list[bytes] = []
        end_s = time.monotonic() + 20
        while len(found) < wanted and time.monotonic() < end_s:
            found += [bytes.fromhex(notice) for notice in self.ask("notices")]
            time.sleep(0.005)
        return found

    def send(self, sent: signal.Signals) -> None:
        self._process.send_signal(sent)

    def end(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.communicate()
        self.memory.free()


@dataclass
class Way:
    """A transport under test: this process's end, one peer that stays, and a maker of others."""

    name: str
    transport: Transport
    memory: Memory
    start: Callable[[str], Process]
    process: Process
    peer: Peer

    def scatter(
        self, peer: Process, sizes: list[int], total_bytes: int, seed: int, notice: bytes = b""
    ) -> Batch:
        """Blocks of random sizes from a shuffled source to a shuffled destination, none twice."""
        rng = np.random.default_rng(seed)
        self.memory.pool[:] = rng.integers(0, 256, POOL_BYTES, np.uint8)
        peer.memory.pool[:] = 0
        nbytes = rng.choice(sizes, total_bytes // min(sizes)).astype(np.int64)
        nbytes = nbytes[np.cumsum(nbytes) <= total_bytes]

        def places(base: int) -> Any:
            order = rng.permutation(nbytes.size)
            offsets = np.empty(nbytes.size, np.int64)
            offsets[order] = np.cumsum(nbytes[order]) - nbytes[order]
            return base + offsets

        return Batch(places(self.memory.address), places(peer.address), nbytes, notice)

    def arrived(self, peer: Process, batch: Batch) -> int:
        """How many blocks of the batch are right at the peer, by checksum."""
        right = 0
        for source, target, nbytes in zip(
            batch.src_addresses - self.memory.address,
            batch.dst_addresses - peer.address,
            batch.nbytes,
            strict=True,
        ):
            sent = self.memory.pool[source : source + nbytes]
            got = peer.memory.pool[target : target + nbytes]
            right += xxhash.xxh3_64_digest(sent) == xxhash.xxh3_64_digest(got)
        return right


@pytest.fixture(params=WAYS, scope="session")
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    name, environment = WAYS[request.param]
    memory = Memory()
    processes: list[Process] = []

    def start(agent: str) -> Process:
        processes.append(Process(name, agent, environment))
        return processes[-1]

    with pytest.MonkeyPatch.context() as patched:
        for key, setting in environment.items():
            patched.setenv(key, setting)
        try:
            transport = open_transport(name, "sender")
        except Missing as error:
            memory.free()
            pytest.skip(str(error))
        transport.register((Region(memory.address, POOL_BYTES),))
        process = start("decode")
        yield Way(
            request.param, transport, memory, start, process, transport.connect("decode", process.metadata)
        )
        transport.close()
    for process in processes:
        process.end()
    memory.free()
