"""All simulated workers of one process: one time, one network, a port each."""

import asyncio
import socket
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.sglang.simulated.carrier import Carrier
from kvferry.integrations.sglang.simulated.hooks import Dispatch
from kvferry.integrations.sglang.simulated.identity import Identity
from kvferry.integrations.sglang.simulated.meeting import Meeting, make_bootstrap_app
from kvferry.integrations.sglang.simulated.options import SimulationOptions
from kvferry.integrations.sglang.simulated.pump import Pump
from kvferry.integrations.sglang.simulated.server import make_app
from kvferry.integrations.sglang.simulated.telling import Telling
from kvferry.integrations.sglang.simulated.worker import SimulatedWorker
from kvferry.models.prefix import BLOCK_TOKENS
from kvferry.models.simulator.events import Events
from kvferry.models.simulator.spec import ClusterSpec
from kvferry.models.simulator.world import World
from kvferry.policy.worker import Role

LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
BACKLOG = 1024
LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Berth:
    """Where a worker is."""

    id: str
    url: str
    role: Role
    bootstrap_port: int | None
    local_prefill: bool

    def told(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.id,
            "url": self.url,
            "role": self.role.value,
            "bootstrap_port": self.bootstrap_port,
            "local_prefill": self.local_prefill,
        }


@dataclass(slots=True, eq=False)
class SimulatedCluster:
    """An async context manager: its workers serve inside the block.

    Ports count up from `port`, two for a prefill worker (its bootstrap server has the second, or
    `bootstrap_port`); 0 takes free ones. ValueError, when it is made, for ports beyond the last. OSError
    names a port that is taken; ValueError a cluster that no simulator knows.
    """

    spec: ClusterSpec
    options: SimulationOptions = field(default_factory=SimulationOptions)
    port: int = 0
    bootstrap_port: int | None = None
    berths: tuple[Berth, ...] = ()
    workers: dict[str, SimulatedWorker] = field(default_factory=dict)
    _runners: list[web.AppRunner] = field(default_factory=list)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        prefills = sum(spec.role is Role.PREFILL for spec in self.spec.engines)
        own = prefills if self.bootstrap_port is None else 0
        for first, count in ((self.port, len(self.spec.engines) + own), (self.bootstrap_port, prefills)):
            if first and first + count - 1 > LAST_PORT:
                raise ValueError(f"ports {first} to {first + count - 1}: the last port is {LAST_PORT}")

    async def __aenter__(self) -> "SimulatedCluster":
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def serve_words(self) -> list[str]:
        """The words of the `kvferry serve` command that routes to these workers."""
        words = ["kvferry", "serve"]
        words += ["--redis", self.options.redis] if self.options.redis else []
        colocated = [berth.url for berth in self.berths if berth.role is Role.COLOCATED]
        words += ["--worker-urls", *colocated] if colocated else []
        for berth in self.berths:
            if berth.role is Role.PREFILL:
                words += ["--prefill", berth.url, str(berth.bootstrap_port)]
            if berth.role is Role.DECODE:
                words += ["--decode", berth.url]
        if any(berth.role is not Role.COLOCATED for berth in self.berths):
            # they all run on this host, which is not where the simulated ones are
            words += ["--path-class", f"{self.spec.transport}={self.spec.path_class}"]
        return words

    async def _start(self) -> None:
        sockets = [self._listen(spec.role) for spec in self.spec.engines]
        pump = Pump(Events(), self.options.time_scale)
        self._stack.callback(pump.stop)
        dispatch = Dispatch()
        world = World(self.spec, pump.events, dispatch, self.options.seed, BLOCK_TOKENS)
        telling = await self._telling(pump)
        meeting = Meeting(LOOPBACK | {self.options.host})
        self._stack.push_async_callback(meeting.close)
        self._stack.push_async_callback(self._close)
        berths: list[Berth] = []
        for place, (spec, (listener, bootstrap)) in enumerate(zip(self.spec.engines, sockets, strict=True)):
            worker = SimulatedWorker(
                pump,
                Carrier(world, spec, self.options.time_scale),
                meeting.meet,
                half_pair_timeout_s=self.options.half_pair_timeout_s,
                stream_interval=self.options.stream_interval,
            )
            worker.engine = world.engines[place]
            dispatch.workers[spec.id] = self.workers[spec.id] = worker
            port = listener.getsockname()[1]
            bootstrap_port = bootstrap.getsockname()[1] if bootstrap else None
            identity = Identity(
                spec,
                self.options,
                port,
                bootstrap_port,
                self.spec.transport,
                world.path.kind.startswith("rdma"),
                f"{spec.id}-{port}-{uuid.uuid4().hex[:8]}",
            )
            if telling is not None:
                telling.add(identity)
                worker.on_end = partial(telling.ended, identity)
            await self._serve(make_app(worker, identity), listener)
            if bootstrap is not None and bootstrap_port is not None:
                meeting.near[bootstrap_port] = worker
                await self._serve(make_bootstrap_app(worker, identity), bootstrap)
            url = f"http://{self.options.host}:{port}"
            berths.append(Berth(spec.id, url, spec.role, bootstrap_port, spec.local_prefill))
        self.berths = tuple(berths)
        if telling is not None:
            telling.start()
        pump.poke()

    async def _telling(self, pump: Pump) -> Telling | None:
        if not self.options.redis:
            return None
        telling = Telling(await open_store(self.options.redis), pump)
        self._stack.push_async_callback(telling.close)
        return telling

    def _listen(self, role: Role) -> tuple[socket.socket, socket.socket | None]:
        listener = self._socket(self._next_port())
        if role is not Role.PREFILL:
            return listener, None
        given = self.bootstrap_port
        if given is not None:
            self.bootstrap_port = given + 1 if given else 0
        return listener, self._socket(self._next_port() if given is None else given)

    def _next_port(self) -> int:
        port = self.port
        self.port = port + 1 if port else 0
        return port

    def _socket(self, port: int) -> socket.socket:
        host = self.options.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise OSError(f"cannot listen on {host}:{port}: {why}; choose another --port") from error
        self._stack.callback(listener.close)
        listener.setblocking(False)
        return listener

    async def _serve(self, app: web.Application, listener: socket.socket) -> None:
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        self._runners.append(runner)
        await web.SockSite(runner, listener).start()

    async def _close(self) -> None:
        """All at once: each waits a moment for those that it still answers."""
        await asyncio.gather(*(runner.cleanup() for runner in self._runners))
