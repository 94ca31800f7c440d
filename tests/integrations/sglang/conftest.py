"""The router, in this process, in front of fake workers; one real Valkey for all tests."""

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, settings

from kvferry.integrations.redis.connection import Store, open_store
from kvferry.integrations.redis.embedded import server_binary
from kvferry.integrations.redis.leases import Leases
from kvferry.integrations.sglang import legs
from kvferry.integrations.sglang.plugin.wire import Record, encode
from kvferry.integrations.sglang.poller import Target
from kvferry.integrations.sglang.serving import running
from kvferry.integrations.sglang.settings import Settings

# A busy machine is no failure.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
os.environ.setdefault("KVFERRY_EXPLORE", "0")  # what a test expects is no matter of chance


def _load(name: str) -> Any:
    # tests are no package (importmode=importlib), so a helper beside them is loaded by its path
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


fakes = _load("fakeworker")
_load("simulatedworkers")


@pytest.fixture(scope="session")
def fake() -> Any:
    """The module of fake workers."""
    return fakes


@pytest.fixture(scope="session")
def store_url() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="kvferry-test-") as folder:
        path = Path(folder) / "s"
        command = [
            str(server_binary()),
            "--port",
            "0",
            "--unixsocket",
            str(path),
            "--save",
            "",
            "--dir",
            folder,
        ]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(500):
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(path)) == 0:
                    break
            time.sleep(0.01)
        yield f"unix://{path}"
        server.kill()
        server.wait()


class Router:
    """The router under test and an HTTP client for it."""

    def __init__(self, ferry: Any, url: str, session: aiohttp.ClientSession, store_url: str) -> None:
        self.ferry, self.url, self.session, self.store_url = ferry, url, session, store_url

    async def post(self, path: str = "/generate", body: Any = None, **options: Any) -> Any:
        """(status, headers, raw bytes) of a whole answer."""
        given = {"data": body} if isinstance(body, bytes | str) else {"json": body}
        async with self.session.post(self.url + path, **given, **options) as response:
            raw = await response.read()
            return SimpleNamespace(
                status=response.status,
                headers=response.headers,
                raw=raw,
                plan=response.headers.get("x-kvferry-plan"),
            )

    async def get(self, path: str, **options: Any) -> Any:
        async with self.session.get(self.url + path, **options) as response:
            raw = await response.read()
            return SimpleNamespace(status=response.status, headers=response.headers, raw=raw)

    def record(self, headers: Any) -> Any:
        return self.ferry.recent.get(headers["x-kvferry-id"])

    def idle(self) -> bool:
        """Nothing is in flight in the book."""
        totals = self.ferry.book.now.values()
        none = all((t.prefill_tokens, t.decodes, t.context_tokens) == (0.0, 0.0, 0.0) for t in totals)
        return none and len(self.ferry.book) == 0 and not any(self.ferry.book.moves.values())

    async def leases(self) -> dict[str, Any]:
        """What the store itself says this router holds."""
        store = await open_store(self.store_url)
        try:
            totals = await Leases(store, self.ferry.name).totals()
            held = totals.get(self.ferry.name, {})
            return {worker: sums for worker, sums in held.items() if any(sums)}
        finally:
            await store.close()


@pytest.fixture
async def eventually() -> Callable[..., Any]:
    """await eventually(condition): until it is true; fails after a generous while."""

    async def wait(condition: Callable[[], Any], what: str = "") -> None:
        deadline = time.monotonic() + 15.0
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return
            assert time.monotonic() < deadline, f"did not happen in time: {what}"
            await asyncio.sleep(0.005)

    return wait


@pytest.fixture
async def route(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> AsyncIterator[Any]:
    """route(*workers, **told): a router in front of these workers, once it knows all that live."""
    monkeypatch.setenv("KVFERRY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(legs, "ABORT_AFTER_S", (0.0, 0.02, 0.1))

    known = await open_store(store_url)
    learned = [known.keys.learned_times, *(known.keys.learned(kind) for kind in ("lengths", "terms"))]
    await known.client.delete(*learned)  # by routers of earlier tests
    await known.close()

    @asynccontextmanager
    async def started(workers: tuple[Any, ...], told: dict[str, Any]) -> AsyncIterator[Router]:
        targets = tuple(worker if isinstance(worker, Target) else Target(worker.url) for worker in workers)
        given = {"targets": targets, "port": 0, "redis": store_url, "poll_interval_s": 0.05, **told}
        given.setdefault("name", f"test-{id(given):x}-{time.monotonic_ns()}")
        if given["redis"] is None:
            del given["redis"]
        async with running(Settings(**given)) as (ferry, url), aiohttp.ClientSession() as session:
            yield Router(ferry, url, session, store_url)

    async with AsyncExitStack() as stack:

        async def make(*workers: Any, wait_for: int | None = None, **told: Any) -> Router:
            router = await stack.enter_async_context(started(workers, told))
            count = len(workers) if wait_for is None else wait_for
            await eventually(lambda: healthy(router) >= count, f"{count} workers up")
            return router

        yield make


def healthy(router: Router) -> int:
    return sum(member.worker.healthy for member in router.ferry.fleet.members.values())


@pytest.fixture
async def worker() -> AsyncIterator[Any]:
    """worker(role, rooms=...): a started fake worker, stopped at the end."""
    made = []

    async def make(role: str = "colocated", rooms: Any = None, **info: Any) -> Any:
        made.append(await fakes.FakeWorker(role, rooms, **info).start())
        return made[-1]

    yield make
    for one in made:
        await one.kill()


@pytest.fixture
async def pair(worker: Any) -> Any:
    """await pair(colocated=n): a prefill and a decode worker that find each other, and n others."""

    async def make(prefills: int = 1, decodes: int = 1, colocated: int = 1) -> Any:
        rooms = fakes.Rooms()
        pre = [
            await worker("prefill", rooms, disaggregation_bootstrap_port=7000 + i) for i in range(prefills)
        ]
        dec = [await worker("decode", rooms) for _ in range(decodes)]
        col = [await worker("colocated", rooms) for _ in range(colocated)]
        return SimpleNamespace(pre=pre, dec=dec, col=col, all=(*pre, *dec, *col))

    return make


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = await open_store(store_url)
    yield opened
    await opened.close()


@pytest.fixture
def tell(store: Store) -> Callable[..., Any]:
    """await tell(record, ...): as the workers' plugins do."""

    async def send(*records: Record | bytes) -> None:
        for record in records:
            data = record if isinstance(record, bytes) else encode(record)
            await store.client.xadd(store.keys.telemetry, {"data": data})

    return send
