"""A process with pools in shared memory, a destination or a source of handoffs; driven by JSON on stdin.

Each line is {"do": NAME, ...arguments}; the answer is a line "@" + {"ok": ...}, or {"error": class,
"said": its message, "unsafe": may_still_write}.
"""

import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

import numpy as np
import torch
from lasting import opened
from slow_reference import Worker

from kvferry.integrations.handoff.destination import Destination
from kvferry.integrations.handoff.gate import LayerGate
from kvferry.integrations.handoff.source import Source
from kvferry.integrations.transports.errors import TransportError
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec


def scales_of(worker: Worker, ranks: list[int], given: list[str] | None) -> Any:
    """Hexadecimal float32 [layer, K/V, head of the rank] of each rank, as tensors by rank."""
    if given is None:
        return None
    return {
        rank: torch.frombuffer(bytearray.fromhex(one), dtype=torch.float32).view(
            worker.specs[rank].layers, 2, worker.specs[rank].heads
        )
        for rank, one in zip(ranks, given, strict=True)
    }


class Peer:
    """What the lines ask for; one method each."""

    def __init__(self, transport: str, memory: Any) -> None:
        self.transport_name, self.memory = transport, memory
        self.end: Any = None
        self.worker: Any = None
        self.ranks: list[int] = []
        self.arrivals: dict[int, Any] = {}
        self.gate: Any = None
        self.departure: Any = None

    def _open(self, specs: list[dict[str, Any]], ranks: list[int]) -> Any:
        self._leave()
        self.worker = Worker(tuple(PoolSpec(**spec) for spec in specs), self.memory)
        self.ranks = ranks
        return {rank: self.worker.pool(rank) for rank in ranks}

    def _leave(self) -> None:
        """Close what was open."""
        if self.end is not None:
            self.close()
        self.arrivals.clear()

    def destination(
        self, agent: str, specs: Any, ranks: list[int], options: dict[str, Any], closes: bool = False
    ) -> int:
        pools = self._open(specs, ranks)
        self.end = Destination(
            opened(self.transport_name, agent, closes), self.worker.specs, pools, **options
        )
        return int(self.end.port)

    def expect(
        self,
        room: int,
        pages: list[int],
        first: int,
        tokens: int,
        verify: bool = False,
        scales: list[str] | None = None,
    ) -> None:
        self.arrivals[room] = self.end.expect(
            room,
            Place.of(pages, first),
            tokens,
            verify=verify,
            scales=scales_of(self.worker, self.ranks, scales),
        )

    def wait(self, room: int, deadline_s: float) -> dict[str, Any]:
        arrived = self.arrivals[room].wait(deadline_s)
        scales = {
            str(rank): one.float().contiguous().numpy().tobytes().hex()
            for rank, one in (arrived.scales or {}).items()
            if one is not None
        }
        return {
            "pages": [int(page) for page in arrived.pages],
            "tokens": arrived.tokens,
            "scales": scales,
        }

    def cancel(self, room: int) -> None:
        self.arrivals[room].cancel()

    def pages(self) -> dict[str, list[int]]:
        return {
            "free": sorted(self.end.free_pages()),
            "quarantined": sorted(self.end.quarantined()),
            "readable": sorted(self.end.readable()),
        }

    def release(self, pages: list[int]) -> None:
        self.end.release(pages)

    def source(
        self, agent: str, specs: Any, ranks: list[int], options: dict[str, Any], closes: bool = False
    ) -> None:
        pools = self._open(specs, ranks)
        self.end = Source(opened(self.transport_name, agent, closes), self.worker.specs, pools, **options)

    def send(self, port: int, room: int, pages: list[int], tokens: int, gated: bool) -> None:
        peering = self.end.connect("decode", "127.0.0.1", port)
        self.gate = LayerGate() if gated else None
        self.departure = self.end.send(peering, room, Place.of(pages), tokens, gate=self.gate)

    def computed(self, layers: int) -> None:
        self.gate.computed(layers)

    def sent(self, deadline_s: float) -> int:
        return int(self.departure.wait(deadline_s).moved_bytes)

    def idle(self) -> float:
        """The share of a core that this process takes while nothing moves."""
        used_s, began_s = time.process_time(), time.monotonic()
        time.sleep(1.5)
        return (time.process_time() - used_s) / (time.monotonic() - began_s)

    def close(self) -> None:
        end, self.end = self.end, None
        end.close()

    def left(self) -> list[int]:
        """Threads, sockets, and threads of ours in this process."""
        links = []
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the listing's own
                links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        ours = sum(thread.name.startswith("kvferry") for thread in threading.enumerate())
        sockets = sum(link.startswith("socket:") for link in links)
        return [len(os.listdir("/proc/self/task")), sockets, ours]


def main(transport: str, memory: str) -> None:
    torch.set_num_threads(1)
    peer = Peer(transport, np.asarray(np.memmap(memory, np.uint8, "r+")))
    print("@" + json.dumps({"ok": None}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"ok": getattr(peer, asked.pop("do"))(**asked)}
        except (TransportError, ValueError) as error:
            unsafe = getattr(error, "may_still_write", False)
            answer = {"error": type(error).__name__, "said": str(error), "unsafe": unsafe}
        print("@" + json.dumps(answer), flush=True)
    os._exit(0)


main(*sys.argv[1:])
