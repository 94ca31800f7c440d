"""Real servers: the embedded Valkey's binary and Debian's redis-server, each on a Unix socket."""

import asyncio
import contextlib
import inspect
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kvferry.integrations.redis.connection import Store, open_store
from kvferry.integrations.redis.embedded import server_binary

KINDS = ("valkey", "redis")


class Server:
    """A server process that can be killed, started again with its data, paused and resumed."""

    def __init__(self, kind: str, *, durable: bool = False) -> None:
        binary = shutil.which("redis-server") if kind == "redis" else str(server_binary())
        if binary is None:
            pytest.skip("redis-server is not installed (Debian package redis-server)")
        self.dir = Path(tempfile.mkdtemp(prefix="kvferry-test-"))
        self.socket = self.dir / "s"
        self.url = f"unix://{self.socket}"
        self._command = [
            binary, "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.dir), "--save", "",
            *(["--appendonly", "yes", "--appendfsync", "always"] if durable else []),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(500):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(1.0)
                probe.connect(str(self.socket))
                probe.sendall(b"PING\r\n")
                if probe.recv(64).startswith(b"+PONG"):
                    return
            time.sleep(0.01)
        raise RuntimeError(f"{self._command[0]} did not start")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


@pytest.fixture(scope="session", params=KINDS)
def shared_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.param)
    server.start()
    yield server
    server.close()


@pytest.fixture(params=KINDS)
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of this test alone, whose data survives being killed."""
    server = Server(request.param, durable=True)
    server.start()
    yield server
    server.close()


@pytest.fixture
async def store(shared_server: Server) -> AsyncIterator[Store]:
    """A connection to the shared server under a namespace of this test alone."""
    opened = await open_store(shared_server.url, namespace=f"test-{uuid.uuid4().hex}")
    yield opened
    await opened.close()


@pytest.fixture
def eventually():  # type: ignore[no-untyped-def]
    """await eventually(condition): until it (or what it awaits) is true; fails after a generous while."""

    async def holds(condition) -> bool:  # type: ignore[no-untyped-def]
        value = condition()
        return bool(await value if inspect.isawaitable(value) else value)

    async def wait(condition, timeout_s: float = 20.0) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + timeout_s
        while not await holds(condition):
            assert time.monotonic() < deadline, "did not happen in time"
            await asyncio.sleep(0.01)

    return wait
