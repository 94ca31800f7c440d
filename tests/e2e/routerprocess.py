"""A router as a process of its own, and what can be seen from outside of it, the workers and the store."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from kvferry.integrations.redis.connection import Store
from kvferry.integrations.redis.leases import Leases
from kvferry.integrations.sglang.local.worker import LocalWorker

# An idle worker tells its counters about once a second, later when the machine is busy.
UNTOLD_S = 10.0


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
        return [json.loads(line) for line in lines if '"kvferry.decision.v1"' in line]

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
