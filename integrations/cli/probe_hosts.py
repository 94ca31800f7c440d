"""The hosts of a probe: where their agents listen, by which names workers may know them, what they have."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from kvferry.integrations.cli.errors import UsageError
from kvferry.integrations.probe.client import Agent, AgentError
from kvferry.integrations.probe.messages import Described
from kvferry.integrations.sglang.describe import node_of

DEFAULT_PORT = 8600


@dataclass(frozen=True, slots=True)
class Host:
    """`names`: its own name, then the host part of its address, as a router has it of a worker's URL.

    `gpu`: the name of its first GPU, "" without one.
    """

    names: tuple[str, ...]
    gpu: str = ""
    rdma: bool = False

    def same(self, other: "Host") -> bool:
        """Whether a router would take both for one host."""
        return bool(set(self.names) & set(other.names))


async def described(addresses: Sequence[str], token: str | None) -> Mapping[str, Host]:
    """By address. One that does not answer is known by its address alone: `probe` says why."""
    async with aiohttp.ClientSession() as http:
        told = await asyncio.gather(*(_asked(Agent(http, address, token)) for address in addresses))
    return hosts_of(dict(zip(addresses, told, strict=True)))


def hosts_of(told: Mapping[str, Described | None]) -> Mapping[str, Host]:
    """A name that agents of several machines have says nothing, and is left out."""
    machines = Counter(name for name, _ in {(one.name, one.host_id) for one in told.values() if one})
    hosts = {}
    for address, one in told.items():
        node = node_of(urlsplit(f"//{address}").hostname or address)
        if one is None:
            hosts[address] = Host((node,))
            continue
        names = (one.name, node) if machines[one.name] == 1 else (node,)
        gpu = one.gpus[0] if one.gpus else ""
        hosts[address] = Host(tuple(dict.fromkeys(names)), gpu, bool(one.rdma_devices))
    return hosts


def addresses_of(text: str) -> tuple[str, ...]:
    """`10.0.0.2:8600,10.0.0.5` as host:port each. UsageError for fewer than two, and for what is none."""
    found = tuple(_address(part.strip()) for part in text.split(",") if part.strip())
    if len(found) < 2:
        raise UsageError(f"--peers {text!r}: a path needs two agents: give HOST:PORT,HOST:PORT")
    if twice := sorted({one for one in found if found.count(one) > 1}):
        raise UsageError(f"--peers: given more than once: {', '.join(twice)}")
    return found


def _address(text: str) -> str:
    try:
        parts = urlsplit(f"//{text}")
        port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError:  # a port beyond 65535, a broken IPv6 address
        port = 0
    if not port or not parts.hostname or parts.netloc != text or "@" in text or "/" in text:
        raise UsageError(f"--peers: {text!r} is no agent's address: give HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"


async def _asked(agent: Agent) -> Described | None:
    try:
        return await agent.describe()
    except AgentError:
        return None
