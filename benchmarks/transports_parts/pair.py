"""Two processes over one transport: kvferry and the bare library side by side, over the same memory."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from transports_parts.memory import Memory, scattered
from transports_parts.raw import RAW, Raw

from kvferry.integrations.transports.base import Batch, Peer, Transport
from kvferry.integrations.transports.registry import open_transport

PEER = Path(__file__).with_name("peer.py")
# UCX would take any network device, one that is about to go as well.
LOOPBACK = {"UCX_NET_DEVICES": "lo"}
# By what the table calls it: the transport, and what its library reads from the environment.
WAYS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "mooncake": ("mooncake", {}),
    "nixl cma": ("nixl", {"UCX_TLS": "tcp,cma,self", **LOOPBACK}),
    "nixl tcp": ("nixl", {"UCX_TLS": "tcp,self", **LOOPBACK}),
}


@dataclass
class Pair:
    """This process's side; `peer` is the other one, for kvferry's transport."""

    way: str
    memory: Memory
    transport: Transport
    raw: Raw
    peer: Peer
    there: int
    _process: "subprocess.Popen[str]"

    def ask(self, what: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return said(self._process)

    @contextmanager
    def raw_moves(self) -> Iterator[None]:
        """The other side's bare library makes progress, without a pause, where it has to: over TCP."""
        if not self.way.endswith("tcp"):
            yield
            return
        self.ask("raw")
        try:
            yield
        finally:
            self.ask("rest")

    def batch(self, moved_bytes: int, blocks: int) -> Batch:
        return scattered(self.memory.address, self.there, moved_bytes, blocks)

    def arrived(self, batch: Batch) -> bool:
        """Whether the target of a `batch` now holds its blocks, by checksum."""
        moved, block = batch.moved_bytes, int(batch.nbytes[0])
        expected = np.empty((len(batch), block), np.uint8)
        source = self.memory.bytes[:moved].reshape(-1, block)
        to = (batch.dst_addresses - self.there) // block
        expected[to] = source[(batch.src_addresses - self.memory.address) // block]
        return bool(self.ask(f"digest {moved}") == xxhash.xxh3_64_hexdigest(expected.ravel().data))

    def refill(self, moved_bytes: int, seed: int) -> None:
        """Other bytes to move."""
        self.memory.bytes[:moved_bytes] = np.random.default_rng(seed).integers(0, 256, moved_bytes, np.uint8)


@contextmanager
def pair(way: str, nbytes: int) -> Iterator[Pair]:
    """Both sides with `nbytes` bytes. `Missing` where the library does not load."""
    name, environment = WAYS[way]
    before = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    memory = Memory(nbytes)
    transport = open_transport(name, "bench")
    process = subprocess.Popen(
        [sys.executable, str(PEER), name, str(nbytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        transport.register((memory.region,))
        raw = RAW[name](f"raw-bench-{os.getpid()}", memory.address, nbytes)
        told = said(process)
        peer = transport.connect("peer", bytes.fromhex(told["metadata"]))
        raw.meet(told["session"])
        found = Pair(way, memory, transport, raw, peer, told["address"], process)
        found.ask("raw")  # both sides wire up
        raw.prepared(found.batch(4096, 1))()
        found.ask("rest")
        yield found
        process.communicate("end\n", timeout=20.0)
        raw.close()
    finally:
        process.kill()
        process.communicate()
        transport.close()
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})


def said(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("@"):
            return json.loads(line[1:])
    raise RuntimeError(f"the peer died, exit code {process.wait()}")
