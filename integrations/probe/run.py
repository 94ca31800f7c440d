"""`kvferry probe run` without its command: every ordered pair of agents, over every transport."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import aiohttp

from kvferry.integrations.probe.client import Agent, AgentError
from kvferry.integrations.probe.measured import Measured
from kvferry.integrations.probe.messages import Described, Open, Opened
from kvferry.integrations.probe.path import Path, Scope
from kvferry.integrations.transports.registry import names

__all__ = ["Progress", "Scope", "loaded", "once_each", "probe"]

log = logging.getLogger("kvferry.probe")

WITHIN_A_HOST = "local"


@dataclass(frozen=True, slots=True)
class Progress:
    """Path `path` of `paths` (from 1): `moves` were made in `spent_s` of about `budget_s` seconds."""

    path: int
    paths: int
    src: str
    dst: str
    transport: str
    moves: int
    spent_s: float
    budget_s: float


async def probe(
    agents: Sequence[str],
    transports: Sequence[str] | None = None,
    *,
    scope: Scope | None = None,
    token: str | None = None,
    device: str = "cpu",
    progress: Callable[[Progress], None] = lambda _: None,
    done: Callable[[Measured], None] = lambda _: None,
) -> list[Measured]:
    """Measure every ordered pair of `agents` (host:port), one after the other, transport by transport.

    `transports`: by default all but "local" that at least one agent loads. What goes wrong with a pair is its
    `Measured.error`; `done` is told of each path when it was measured. ValueError for fewer than two agents,
    one twice, though by two addresses, or an unknown transport.
    """
    if unknown := sorted(set(transports or ()) - set(names())):
        raise ValueError(f"no transport {unknown[0]!r}: there are {', '.join(names())}")
    if len(set(agents)) != len(agents) or len(agents) < 2:
        raise ValueError("a path needs two agents, each given once")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        known = [Agent(http, address, token) for address in agents]
        found = await asyncio.gather(*(_described(agent) for agent in known))
        described = dict(zip(known, found, strict=True))
        told = [(agent.address, one) for agent, one in described.items() if isinstance(one, Described)]
        once_each(dict(told))
        chosen = transports or loaded([one for _, one in told])
        run = _Run(
            described, scope or Scope(), device, progress, done, len(chosen) * len(agents) * (len(agents) - 1)
        )
        return [measured for transport in chosen for measured in await run.over(transport)]


class _Run:
    def __init__(
        self,
        agents: Mapping[Agent, Described | str],
        scope: Scope,
        device: str,
        progress: Callable[[Progress], None],
        done: Callable[[Measured], None],
        paths: int,
    ) -> None:
        self._agents, self._scope, self._device = agents, scope, device
        self._progress, self._done = progress, done
        self._paths, self._path = paths, 0
        told = Counter(found.name for found in agents.values() if isinstance(found, Described))
        self._names = {
            agent: agent.address if isinstance(found, str) or told[found.name] > 1 else found.name
            for agent, found in agents.items()
        }

    async def over(self, transport: str) -> list[Measured]:
        asked = Open(transport, self._scope.largest_bytes, self._device)
        opened = await asyncio.gather(*(self._open(agent, asked) for agent in self._agents))
        sessions = dict(zip(self._agents, opened, strict=True))
        found = []
        try:
            for src, dst in permutations(self._agents, 2):
                self._path += 1
                found.append(await self._pair(src, dst, transport, sessions))
                self._done(found[-1])
        finally:
            settled = len(found) == len(sessions) * (len(sessions) - 1) and not any(
                one.error for one in found
            )
            ends = [_end(agent, one, settled) for agent, one in sessions.items() if isinstance(one, Opened)]
            await asyncio.gather(*ends)
        return found

    async def _open(self, agent: Agent, asked: Open) -> Opened | str:
        described = self._agents[agent]
        if isinstance(described, str):
            return described
        if why_not := described.transports.get(asked.transport, "it does not know that transport"):
            return f"{agent.address}: {why_not}"
        try:
            return await agent.open(asked)
        except AgentError as error:
            return str(error)

    async def _pair(
        self, src: Agent, dst: Agent, transport: str, sessions: Mapping[Agent, Opened | str]
    ) -> Measured:
        measured = Measured(
            self._names[src],
            self._names[dst],
            transport,
            src_address=src.address,
            dst_address=dst.address,
        )
        own, theirs = sessions[src], sessions[dst]
        if isinstance(own, str):
            return replace(measured, error=own)
        if isinstance(theirs, str):
            return replace(measured, error=theirs)
        if transport == WITHIN_A_HOST and self._host_id(src) != self._host_id(dst):
            return replace(measured, error=f"{transport} moves stay within a host")
        path = Path(src, dst, own, theirs, self._scope, lambda: self._tell(measured, path))
        try:
            await path.measure()
        except AgentError as error:
            measured = replace(measured, error=str(error))
        return replace(
            measured,
            samples=tuple(path.samples),
            registration_s=max(own.registration_s, theirs.registration_s),
            registration_s_per_byte=max(own.registration_s_per_byte, theirs.registration_s_per_byte),
            first_contact_s=path.first_contact_s,
        )

    def _host_id(self, agent: Agent) -> str:
        found = self._agents[agent]
        return found if isinstance(found, str) else found.host_id

    def _tell(self, measured: Measured, path: Path) -> None:
        self._progress(
            Progress(
                self._path,
                self._paths,
                measured.src,
                measured.dst,
                measured.transport,
                len(path.samples),
                path.spent_s,
                self._scope.budget_s,
            )
        )


async def _described(agent: Agent) -> Described | str:
    try:
        return await agent.describe()
    except AgentError as error:
        return str(error)


def loaded(found: Sequence[Described]) -> tuple[str, ...]:
    """The transports that are measured by default: all but "local" that at least one agent loads."""
    able = {name for one in found for name, why_not in one.transports.items() if not why_not}
    between = [name for name in names() if name != WITHIN_A_HOST]
    return tuple(name for name in between if name in able) or tuple(between)


def once_each(told: Mapping[str, Described]) -> None:
    """ValueError where two addresses reach one agent: its moves to itself would be no path."""
    by_agent: dict[str, str] = {}
    for address, one in told.items():
        if one.agent_id and (other := by_agent.setdefault(one.agent_id, address)) != address:
            raise ValueError(f"{other} and {address} are one agent ({one.name}): give each once")


async def _end(agent: Agent, opened: Opened, settled: bool) -> None:
    try:
        await agent.end(opened.session, settled=settled)
    except AgentError as error:
        # It ends by itself when nobody uses it.
        log.info("session not ended: %s", error)
