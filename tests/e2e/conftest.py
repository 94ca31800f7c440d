"""One set of real SGLang workers for the whole test session, driven directly or through real routers."""

import asyncio
import importlib.util
import json
import os
import random
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.redis.embedded import EmbeddedValkey
from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.command import missing_requirement
from kvferry.integrations.sglang.local.spec import TRANSPORTS, WorkerOptions, WorkerSpec
from kvferry.integrations.sglang.local.worker import LocalWorker

os.environ.setdefault("KVFERRY_EXPLORE", "0")  # what a test expects is no matter of chance

SPECS = (
    WorkerSpec("colocated"),
    WorkerSpec("prefill", "mooncake"),
    WorkerSpec("decode", "mooncake"),
    WorkerSpec("prefill", "nixl"),
    WorkerSpec("decode", "nixl"),
)


def _load(name: str) -> Any:
    # tests are no package (importmode=importlib), so a helper beside them is loaded by its path
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


routerprocess = _load("routerprocess")
Router, Watcher, eventually = routerprocess.Router, routerprocess.Watcher, routerprocess.eventually

PromptIds = Callable[..., list[int]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder `e2e`."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("e2e")


@pytest.fixture(scope="session")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the workers' logs stay; pytest keeps the folders of its last three sessions."""
    folder = tmp_path_factory.mktemp("sglang")
    print(f"logs of the workers: {folder}")
    return folder


@pytest.fixture(scope="session")
def cluster(log_dir: Path) -> Iterator[LocalCluster]:
    """A colocated worker, a pair over Mooncake and a pair over NIXL; started by the first test that asks.

    A test that kills one of them brings it back with `worker.restart()`.
    """
    missing = missing_requirement(list(SPECS))
    if missing:
        pytest.skip(missing)
    with LocalCluster(SPECS, WorkerOptions(), log_dir=log_dir, timeout_s=280) as running:
        yield running


@pytest.fixture(scope="session")
def prompt_ids() -> PromptIds:
    """`prompt_ids(length, seed=0)`: token ids of a prompt; each is a printable ASCII character."""

    def make(length: int, seed: int = 0) -> list[int]:
        return random.Random(f"{length}/{seed}").choices(range(94), k=length)

    return make


@dataclass(frozen=True, slots=True)
class Direct:
    """Drives workers as a router would, at temperature 0; every method returns the output ids."""

    session: aiohttp.ClientSession

    async def colocated(
        self, worker: LocalWorker, ids: list[int], tokens: int = 16, *, stream: bool = False
    ) -> list[int]:
        """Run on one worker."""
        return await self.post(worker, body(ids, tokens, stream))

    async def split(
        self,
        prefill: LocalWorker,
        decode: LocalWorker,
        ids: list[int],
        tokens: int = 16,
        *,
        stream: bool = False,
    ) -> list[int]:
        """Run on a pair."""
        room = {
            "bootstrap_host": prefill.options.host,
            "bootstrap_port": prefill.bootstrap_port,
            "bootstrap_room": random.getrandbits(62),
        }
        both = body(ids, tokens, stream) | room
        _, output = await asyncio.gather(self.post(prefill, both), self.post(decode, both))
        return output

    async def post(self, worker: LocalWorker, request: dict[str, Any]) -> list[int]:
        """POST /generate. Raises aiohttp.ClientResponseError for any status but 200."""
        async with self.session.post(worker.url + "/generate", json=request) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise AssertionError(f"{worker.name} answered {answer.status}: {text[:300]}")
        if request["stream"]:
            events = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
            assert events[-1] == "[DONE]"
            text = events[-2]
        output: list[int] = json.loads(text)["output_ids"]
        return output


def body(ids: list[int], tokens: int, stream: bool) -> dict[str, Any]:
    """Return the body of POST /generate that runs exactly `tokens` tokens at temperature 0."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return {"input_ids": ids, "stream": stream, "sampling_params": sampling}


@pytest.fixture
async def direct() -> AsyncIterator[Direct]:
    """A `Direct` with a session of its own."""
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield Direct(session)


@pytest.fixture(scope="session")
def store_url() -> Iterator[str]:
    """A store that all routers of the session share."""
    server = EmbeddedValkey()
    asyncio.run(server.start())
    yield server.url
    server.stop()


StartRouter = Callable[..., Any]


@pytest.fixture(scope="session")
def start_router(tmp_path_factory: pytest.TempPathFactory, store_url: str) -> Iterator[StartRouter]:
    """`start_router(workers, policy, *flags)`: a router that is ready and knows all of these workers.

    `await_workers=False` returns as soon as it listens. All are stopped at the end of the session.
    """
    base, numbers, running = tmp_path_factory.mktemp("routers"), count(1), []

    def start(
        workers: Sequence[LocalWorker | str],
        policy: str = "kvferry",
        *args: str,
        await_workers: bool = True,
        **env: str,
    ) -> Any:
        urls = [worker if isinstance(worker, str) else worker.url for worker in workers]
        folder = base / f"{next(numbers)}-{policy}"
        router = Router(urls, policy, folder, ("--redis", store_url, *args), env)
        running.append(router)
        if await_workers:
            pattern = r"(\S+): \w+ worker of \S+ is up"
            assert eventually(lambda: set(re.findall(pattern, router.log)) >= set(urls), 60), router.log
        return router

    yield start
    for router in running:
        router.stop()


@pytest.fixture
async def watcher(store_url: str) -> AsyncIterator[Any]:
    """A `Watcher` with connections of its own."""
    store = await open_store(store_url)
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield Watcher(session, store)
    await store.close()


@dataclass(frozen=True, slots=True)
class Routes:
    """One router per way to run a request, over the same workers: each must use its own way."""

    colocated: Any
    mooncake: Any
    nixl: Any

    def of(self, name: str) -> Any:
        """By way's name."""
        router: Any = getattr(self, name)
        return router


@pytest.fixture(scope="session")
def routes(cluster: LocalCluster, start_router: StartRouter) -> Routes:
    """A router that never splits, and one per transport that always does and never rescues."""
    single = cluster.of("colocated")
    pairs = {
        transport: [*cluster.of("prefill", transport), *cluster.of("decode", transport)]
        for transport in TRANSPORTS
    }
    return Routes(
        start_router(cluster.workers, "always_colocated"),
        *(
            start_router([*pairs[transport], *single], "always_split", KVFERRY_MAX_ATTEMPTS="1")
            for transport in TRANSPORTS
        ),
    )
