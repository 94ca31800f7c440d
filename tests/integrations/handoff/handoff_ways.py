"""Two processes: pytest's has the sources, others have the destinations, in memory that pytest maps too."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lasting import opened
from slow_reference import Worker, worker_bytes

from kvferry.integrations.handoff.source import Source
from kvferry.integrations.transports.errors import Missing
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec

PEER = Path(__file__).with_name("handoff_peer.py")
ARENA_BYTES = 96 * 2**20
PATTERN = 0xA5
SLOT_BYTES = 2**20  # unless a test says otherwise: touching the memory of a move's size takes time
# UCX takes any interface that is there when it starts; others that tests make go away again.
LOOPBACK = {"UCX_NET_DEVICES": "lo"}
WAYS = {
    "mooncake": ("mooncake", {}),
    "nixl-cma": ("nixl", {"UCX_TLS": "tcp,cma,self", **LOOPBACK}),
    "nixl-tcp": ("nixl", {"UCX_TLS": "tcp,self", **LOOPBACK}),
}


class PeerSaid(Exception):
    """What a call in the other process raised: its class, its message, its `may_still_write`."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(f"{answer['error']}: {answer['said']}")
        self.kind, self.unsafe = answer["error"], answer["unsafe"]


class Process:
    """A peer; `memory` is its pools' memory, mapped here too."""

    def __init__(self, transport: str, environment: dict[str, str]) -> None:
        self._file = tempfile.NamedTemporaryFile(dir="/dev/shm")  # noqa: SIM115 (it ends in `end`)
        self._file.truncate(ARENA_BYTES)
        self.memory: Any = np.asarray(np.memmap(self._file.name, np.uint8, "r+"))
        self._process = subprocess.Popen(
            [sys.executable, str(PEER), transport, self._file.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def tell(self, what: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self._process.stdin.flush()

    def read(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                answer = json.loads(line[1:])
                if "error" in answer:
                    raise PeerSaid(answer)
                return answer["ok"]
        raise AssertionError("the peer died")

    def ask(self, what: str, **arguments: Any) -> Any:
        self.tell(what, **arguments)
        return self.read()

    def send(self, sent: signal.Signals) -> None:
        self._process.send_signal(sent)
        if sent is signal.SIGKILL:
            self._process.wait()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.communicate()
        self._file.close()


@dataclasses.dataclass
class Target:
    """A destination in another process."""

    process: Process
    worker: Worker
    port: int

    def expect(self, room: int, at: Place, tokens: int, **options: Any) -> None:
        self.process.ask(
            "expect",
            room=room,
            pages=[int(page) for page in at.pages],
            first=at.first,
            tokens=tokens,
            **options,
        )

    def wait(self, room: int, deadline_s: float = 30.0) -> Any:
        return self.process.ask("wait", room=room, deadline_s=deadline_s)

    def pages(self) -> dict[str, set[int]]:
        return {name: set(pages) for name, pages in self.process.ask("pages").items()}


class Way:
    """One transport, and the processes that speak it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.transport_name, self.environment = WAYS[name]
        self._processes: list[Process] = []
        self._staying: Process | None = None
        self._other: Process | None = None

    def start(self) -> Process:
        """Another peer; the first answer says that it is there."""
        if not self._processes:
            self.open("look").close()  # skips the test where the library is not there
        process = Process(self.transport_name, self.environment)
        self._processes.append(process)
        process.read()
        return process

    @property
    def process(self) -> Process:
        """A peer that no test kills or stops."""
        if self._staying is None:
            self._staying = self.start()
        return self._staying

    @property
    def other(self) -> Process:
        """A peer that a test may kill or stop: the next one finds another, or one that goes on."""
        if self._other is None or not self._other.alive:
            self._other = self.start()
        return self._other

    def open(self, agent: str, closes: bool = False) -> Any:
        """A transport for this process."""
        with pytest.MonkeyPatch.context() as patched:
            for key, setting in self.environment.items():
                patched.setenv(key, setting)
            try:
                return opened(self.transport_name, agent, closes)
            except Missing as error:
                pytest.skip(str(error))

    def target(
        self,
        specs: Sequence[PoolSpec],
        process: Process | None = None,
        ranks: Sequence[int] | None = None,
        closes: bool = False,
        **options: Any,
    ) -> Target:
        """A new destination, its pools all `PATTERN`, in the staying process where none is given."""
        options = {"slot_bytes": SLOT_BYTES} | options
        process = process or self.process
        worker = Worker(tuple(specs), process.memory)
        process.memory[: worker_bytes(worker.specs)] = PATTERN
        port = process.ask("destination", closes=closes, **opening("decode", worker, ranks, options))
        return Target(process, worker, port)

    @contextmanager
    def source(
        self,
        worker: Worker,
        ranks: Sequence[int] | None = None,
        transport: Any = None,
        **options: Any,
    ) -> Iterator[Source]:
        """A source here of `worker`'s pools."""
        options = {"slot_bytes": SLOT_BYTES} | options
        transport = transport or self.open("prefill")
        pools = {rank: worker.pool(rank) for rank in (range(len(worker.specs)) if ranks is None else ranks)}
        source = Source(transport, worker.specs, pools, **options)
        try:
            yield source
        finally:
            source.close()

    def end(self) -> None:
        for process in self._processes:
            process.end()


def opening(
    agent: str, worker: Worker, ranks: Sequence[int] | None, options: dict[str, Any]
) -> dict[str, Any]:
    """The arguments that open a destination or source in a peer."""
    return {
        "agent": agent,
        "specs": [dataclasses.asdict(spec) for spec in worker.specs],
        "ranks": list(range(len(worker.specs)) if ranks is None else ranks),
        "options": options,
    }


def worker_here(specs: Sequence[PoolSpec]) -> Worker:
    """A worker's pools in this process, all zero."""
    return Worker(tuple(specs), np.zeros(worker_bytes(tuple(specs)), np.uint8))


def until(true: Callable[[], Any], what: str, limit_s: float = 15.0) -> Any:
    """What `true` returns once it is true; fails where that does not come."""
    end_s = time.monotonic() + limit_s
    while not (found := true()):
        assert time.monotonic() < end_s, f"{what} did not happen"
        time.sleep(0.01)
    return found
