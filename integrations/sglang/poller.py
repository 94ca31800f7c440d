"""Agentless telemetry: what workers answer about themselves, asked again and again."""

import asyncio
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import aiohttp

from kvferry.integrations.sglang.describe import NotAWorkerError, with_plugin, worker_of
from kvferry.integrations.sglang.fleet import Fleet, snapshot_age_s
from kvferry.integrations.sglang.kvevents import KVEvents
from kvferry.integrations.sglang.plugin_info import PluginInfo
from kvferry.integrations.sglang.telemetry_unknown import introduction, not_known
from kvferry.policy.worker import Role, Worker

log = logging.getLogger("kvferry.poller")

LOADS = "/v1/loads?include=core,disagg,queues,memory"
POLL_TIMEOUT_S = 2.0
HEALTH_TIMEOUT_S = 5.0
FAILED_POLLS = 2
# An idle worker publishes about once a second and a busy one with every prefill; a scheduler that has
# been silent for this long is asked whether it lives.
SILENT_AFTER_S = 10.0
RETRY_S = 0.5
# What a plugin does can change while its worker serves: a feature whose hooks fail turns itself off.
FEATURES_S = 10.0
WATCHED = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class Target:
    """A worker to watch: its URL, the role it must have (None: whatever it says) and a port it does not
    tell itself."""

    url: str
    role: Role | None = None
    bootstrap_port: int | None = None


@dataclass(slots=True, eq=False)
class Poller:
    """One task per worker."""

    fleet: Fleet
    session: aiohttp.ClientSession
    targets: Sequence[Target]
    interval_s: float = 0.25
    store_up: Callable[[], bool] = lambda: True
    headers: Mapping[str, str] = field(default_factory=dict)
    kv_events: KVEvents | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _wakes: dict[str, asyncio.Event] = field(default_factory=dict)
    _asks: dict[str, asyncio.Event] = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        for target in self.targets:
            self._wakes[target.url], self._asks[target.url] = asyncio.Event(), asyncio.Event()
            for work in (self._watch, self._watch_features):
                self._tasks.append(asyncio.create_task(work(target), name=f"{work.__name__} {target.url}"))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def suspect(self, worker_id: str, why: str) -> None:
        """A request failed on this worker: use it no more until it says that it is healthy."""
        self._drop(worker_id, why)
        self.ask(worker_id)

    def ask(self, worker_id: str) -> None:
        """Poll this worker now rather than at the next tick."""
        if worker_id in self._wakes:
            self._wakes[worker_id].set()

    def ask_features(self, worker_id: str) -> None:
        """It did not do what its plugin had told it can: ask again what that is."""
        if worker_id in self._asks:
            self._asks[worker_id].set()

    async def _watch_features(self, target: Target) -> None:
        """Apart from the loads: a scheduler that is too busy to tell is not a lost worker."""
        while True:
            await self._pause(self._asks[target.url], FEATURES_S)
            member = self.fleet.members.get(target.url)
            if member is None or not member.worker.healthy or not member.plugin.version:
                continue
            try:
                info = await self._json(target.url, "/server_info", FEATURES_S)
                plugin, was = PluginInfo.of(info), member.plugin
                if plugin.instances != was.instances or self.fleet.members[target.url] is not member:
                    continue  # it is another worker by now
                self.fleet.learned(with_plugin(member.worker, info, target.bootstrap_port), plugin)
                if plugin.summary != was.summary:
                    log.warning("%s: its plugin has changed: %s", target.url, plugin.summary)
            except WATCHED:
                continue  # whether it lives is for the loads to say
            except Exception as error:  # noqa: BLE001 - told; an odd answer must not end the watch
                self._odd(target.url, error)

    async def _watch(self, target: Target) -> None:
        failed = 0
        while True:
            member = self.fleet.members.get(target.url)
            if member is None or not member.worker.healthy:
                failed = 0
                admitted = await self._admit(target)
                await self._pause(self._wakes[target.url], self.interval_s if admitted else RETRY_S)
                continue
            try:
                answer = await self._loads(target.url)
                self.fleet.read_loads(target.url, answer)
                self._listen(member.worker)
                failed = 0
                if snapshot_age_s(answer) > SILENT_AFTER_S and not await self._healthy(target.url):
                    self._drop(target.url, f"scheduler silent for {SILENT_AFTER_S:g} s and not healthy")
            except Exception as error:  # noqa: BLE001 - told; an odd answer must not end the watch
                failed += 1
                if not isinstance(error, WATCHED):
                    self._odd(target.url, error)
                refused = isinstance(error, aiohttp.ClientConnectorError)
                if refused or failed >= FAILED_POLLS:
                    self._drop(target.url, f"does not answer: {_why(error)}")
            await self._pause(self._wakes[target.url], self.interval_s)

    async def _admit(self, target: Target) -> bool:
        """Ask a new or lost worker what it is; it is used once it says that it is healthy."""
        try:
            loads = await self._loads(target.url)
            info = await self._json(target.url, "/server_info")
            worker = worker_of(target.url, info, loads, target.bootstrap_port)
            if target.role is not None and worker.role is not target.role:
                raise NotAWorkerError(
                    f"{target.url} was given as a {target.role} worker but says it is {worker.role}"
                )
            if not await self._healthy(target.url):
                return False
            plugin = PluginInfo.of(info)
            member = self.fleet.admit(worker, plugin)
            if self.kv_events is not None and member.caches_prefixes:
                member.kv = self.kv_events.follow(worker.id, info)
            self.fleet.read_loads(worker.id, loads)
        except WATCHED as error:
            self.fleet.drop(target.url, _why(error))
            self._tell(target.url, f"{target.url}: {_why(error)}", logging.WARNING)
            return False
        except Exception as error:  # noqa: BLE001 - told; an odd answer must not end the watch
            self.fleet.drop(target.url, _why(error))
            self._odd(target.url, error)
            return False
        self._tell(worker.id, f"{worker.id}: {worker.role} worker of {worker.model} is up", logging.INFO)
        about = introduction(worker, plugin, self.fleet.silence(worker.id))
        self._tell(f"{worker.id} plugin", about, logging.INFO)
        told = info.get("disaggregation_bootstrap_port")
        if target.bootstrap_port is not None and told not in (None, target.bootstrap_port):
            log.warning(
                "%s: its bootstrap port was given as %d, but it says %s: without a mapping between them "
                "every split fails",
                worker.id,
                target.bootstrap_port,
                told,
            )
        return True

    def _listen(self, worker: Worker) -> None:
        """Say when a plugin is not heard any more that should be, and when it is again."""
        key, silence = f"{worker.id} telemetry", self.fleet.silence(worker.id)
        if silence == "unheard":
            about = not_known(worker, silence)
            if self.store_up():  # else nothing is heard of anybody, and that was told
                self._tell(key, f"{worker.id}: nothing is heard from its plugin{about}", logging.WARNING)
        elif self._told.pop(key, None):
            log.info("%s: its plugin is heard again", worker.id)

    def _drop(self, worker_id: str, why: str) -> None:
        member = self.fleet.members.get(worker_id)
        if member is not None and member.worker.healthy:
            self.fleet.drop(worker_id, why)
            self._tell(worker_id, f"{worker_id}: down: {why}", logging.WARNING)

    def _odd(self, url: str, error: Exception) -> None:
        """Something that no worker was expected to answer: told once, with where it was stumbled upon."""
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {at.name}, line {at.lineno}: {error}"
        self._tell(url, f"{url}: cannot read what this worker says of itself: {where}", logging.ERROR)

    def _tell(self, key: str, message: str, level: int) -> None:
        if self._told.get(key) != message:
            self._told[key] = message
            log.log(level, "%s", message)

    async def _loads(self, url: str) -> dict[str, Any]:
        answer = await self._json(url, LOADS)
        answer["answered_s"] = _unix_s(answer.get("timestamp"))
        return answer

    async def _json(self, url: str, path: str, timeout_s: float = POLL_TIMEOUT_S) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self.session.get(url + path, timeout=timeout, headers=self.headers) as response:
            if response.status != 200:
                raise NotAWorkerError(f"GET {path} answered {response.status}")
            answer = await response.json(content_type=None)
            if not isinstance(answer, dict):
                raise NotAWorkerError(f"GET {path} answered no JSON object")
            return answer

    async def _healthy(self, url: str) -> bool:
        timeout = aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S)
        try:
            async with self.session.get(url + "/health", timeout=timeout, headers=self.headers) as response:
                return response.status == 200
        except WATCHED as error:
            self._tell(url, f"{url}/health: {_why(error)}", logging.WARNING)
            return False

    async def _pause(self, wake: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await wake.wait()
        except TimeoutError:
            pass
        wake.clear()


def _unix_s(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _why(error: BaseException) -> str:
    text = str(error)
    return text if text else type(error).__name__
