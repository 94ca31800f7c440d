"""One set of real SGLang workers for the whole test session, driven directly or through real routers."""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvferry.integrations.redis.connection import Store, open_store
from kvferry.integrations.redis.embedded import EmbeddedValkey
from kvferry.integrations.redis.leases import Leases
from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.command import missing_requirement
from kvferry.integrations.sglang.local.spec import TRANSPORTS, WorkerOptions, WorkerSpec
from kvferry.integrations.sglang.local.worker import LocalWorker

SPECS = (
    WorkerSpec("colocated"),
    WorkerSpec("prefill", "mooncake"),
    WorkerSpec("decode", "mooncake"),
    WorkerSpec("prefill", "nixl"),
    WorkerSpec("decode", "nixl"),
)

# An idle worker tells its counters about once a second, later when the machine is busy.
UNTOLD_S = 10.0

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


class Router:
    """`kvferry serve` in a process of its own, with its own state folder and log."""

    def __init__(
        self, urls: Sequence[str], policy: str, folder: Path, args: Sequence[str], env: dict[str, str]
    ) -> None:
        folder.mkdir(parents=True)
        self.folder, self.log_path = folder, folder / "router.log"
        words = ["serve", "--worker-urls", *urls, "--port", "0", "--policy", policy, *args]
        env = {**os.environ, "KVFERRY_STATE_DIR": str(folder), "COLUMNS": "1000", **env}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kvferry.integrations.cli.app", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        told = eventually(lambda: re.search(r"kvferry (\S+) on (http://\S+),", self.log), 60)
        assert told, self.log
        self.name, self.url = told.groups()

    @property
    def log(self) -> str:
        """All it has printed."""
        return self.log_path.read_text(errors="replace")

    def records(self) -> list[dict[str, Any]]:
        """The request log: finished requests, in the order in which they ended."""
        lines = [line for file in sorted(self.folder.glob("*.jsonl*")) for line in file.open()]
        return [json.loads(line) for line in lines]

    def stop(self) -> None:
        """SIGTERM, and all that it wrote is on disk."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def eventually(probe: Callable[[], Any], timeout_s: float, every_s: float = 0.1) -> Any:
    """Return the first true value of `probe`, or the last false one when time is up."""
    end = time.monotonic() + timeout_s
    while not (value := probe()) and time.monotonic() < end:
        time.sleep(every_s)
    return value


@pytest.fixture(scope="session")
def store_url() -> Iterator[str]:
    """A store that all routers of the session share."""
    server = EmbeddedValkey()
    asyncio.run(server.start())
    yield server.url
    server.stop()


StartRouter = Callable[..., Router]


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
    ) -> Router:
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


@dataclass(frozen=True, slots=True)
class Watcher:
    """What is going on in the routers, the workers and the store, read from the outside."""

    session: aiohttp.ClientSession
    store: Store

    async def get(self, url: str) -> Any:
        """A GET's JSON."""
        async with self.session.get(url) as answer:
            return json.loads(await answer.read())

    async def metric(self, router: Router, name: str) -> float:
        """Sum of a metric over its labels."""
        async with self.session.get(router.url + "/metrics") as answer:
            text = await answer.text()
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M)
        assert found, f"no {name} in /metrics"
        return sum(map(float, found))

    async def busy(self, worker: LocalWorker) -> tuple[dict[str, int], float]:
        """Every counter of running or queued requests that is not zero, and when they were taken.

        A worker publishes them now and then: the time, Unix seconds, tells what they can know of.
        """
        answer = await self.get(worker.url + "/v1/loads?include=core,disagg,queues")
        found: dict[str, int] = {}
        for rank in answer["loads"]:
            flat = {name: value for name, value in rank.items() if name.startswith("num_") and "reqs" in name}
            for section in ("disaggregation", "queues"):
                part = rank.get(section) or {}
                flat |= {name: part[name] for name in part if name.endswith("_reqs") or section == "queues"}
            found |= {name: value for name, value in flat.items() if isinstance(value, int) and value}
        return found, min(rank["timestamp"] for rank in answer["loads"])

    async def in_flight(self, router: Router) -> dict[str, Any]:
        """What the router's own book and lease keeper still hold; empty when nothing."""
        answer = await self.get(router.url + "/kvferry/workers")
        held = {
            row["id"]: row["in_flight"]
            for row in answer["workers"]
            if any(abs(value) > 1e-6 for value in row["in_flight"].values())
        }
        leases = await self.metric(router, "kvferry_leases")
        return held | ({"leases": leases} if leases else {})

    async def leases(self, router: Router) -> dict[str, Any]:
        """The router's lease totals in the store; empty when it holds none."""
        totals = (await Leases(self.store, "observer").totals()).get(router.name, {})
        return {worker: sums for worker, sums in totals.items() if any(sums)}

    async def until_idle(
        self, routers: Sequence[Router], workers: Sequence[LocalWorker], within_s: float = 10.0
    ) -> float:
        """Seconds until nothing was left anywhere; fails when there still was something after `within_s`.

        A worker's counters are judged by when it took them: those from before this call prove nothing.
        """
        begun, idle_s = time.time(), 0.0
        waiting = list(workers)
        while True:
            left: dict[str, Any] = {}
            for worker in tuple(waiting):
                busy, taken_s = await self.busy(worker)
                if busy or taken_s < begun:
                    assert taken_s < begun + within_s, f"{worker.name} after {taken_s - begun:.1f} s: {busy}"
                    left[worker.name] = busy or "has not told since"
                else:
                    waiting.remove(worker)
                    idle_s = max(idle_s, taken_s - begun)
            for router in routers:
                held = {**await self.in_flight(router), **await self.leases(router)}
                if held:
                    left[router.name] = held
                    idle_s = time.time() - begun
                    assert idle_s < within_s, f"{router.name} after {idle_s:.1f} s: {held}"
            if not left:
                return idle_s
            assert time.time() < begun + within_s + UNTOLD_S, left
            await asyncio.sleep(0.05)


@pytest.fixture
async def watcher(store_url: str) -> AsyncIterator[Watcher]:
    """A `Watcher` with connections of its own."""
    store = await open_store(store_url)
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield Watcher(session, store)
    await store.close()


@dataclass(frozen=True, slots=True)
class Routes:
    """One router per way to run a request, over the same workers: each must use its own way."""

    colocated: Router
    mooncake: Router
    nixl: Router

    def of(self, name: str) -> Router:
        """By way's name."""
        router: Router = getattr(self, name)
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
