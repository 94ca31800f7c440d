"""The hosts of a probe: where their agents listen, by which names workers may know them, what they have."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from kvferry.integrations.cli.errors import UsageError
from kvferry.integrations.probe.client import Agent, AgentError, AgentUnreached
from kvferry.integrations.probe.messages import Described
from kvferry.integrations.probe.run import loaded, once_each
from kvferry.integrations.sglang.describe import node_of

DEFAULT_PORT = 8600


@dataclass(frozen=True, slots=True)
class Host:
    """`names`: its own name, then the host part of its address, as a router has it of a worker's URL.

    `gpu`: the name of its first GPU, "" without one. `address`: of its agent, host:port.
    """

    names: tuple[str, ...]
    gpu: str = ""
    rdma: bool = False
    address: str = ""

    def same(self, other: "Host") -> bool:
        """Whether a router would take both for one host."""
        return bool(set(self.names) & set(other.names))

    def called(self, name: str) -> bool:
        """Whether a person means it: by one of its names, or by its address as in --peers."""
        host = name if ":" in name else node_of(name)
        return host in self.names or _normal(name) == self.address


@dataclass(frozen=True, slots=True)
class Agents:
    """`hosts` by address; one that did not answer is known by its address alone, and `silent` says why.

    `transports`: what is measured where nobody asks for others.
    """

    hosts: Mapping[str, Host]
    silent: Mapping[str, str]
    transports: tuple[str, ...]

    @property
    def names(self) -> str:
        """For people: every host with its address."""
        return ", ".join(f"{host.names[0]} ({address})" for address, host in self.hosts.items())


async def described(addresses: Sequence[str], token: str | None) -> Agents:
    """What the agents say. UsageError where two addresses reach one agent."""
    async with aiohttp.ClientSession() as http:
        told = await asyncio.gather(*(_asked(Agent(http, address, token)) for address in addresses))
    return agents_of(dict(zip(addresses, told, strict=True)))


def agents_of(told: Mapping[str, Described | str]) -> Agents:
    """By address what each agent says, or why it does not. UsageError where two are one."""
    answered = {address: one for address, one in told.items() if isinstance(one, Described)}
    try:
        once_each(answered)
    except ValueError as error:
        raise UsageError(f"--peers: {error}") from None
    silent = {address: one for address, one in told.items() if isinstance(one, str)}
    return Agents(hosts_of(told), silent, loaded(list(answered.values())))


def hosts_of(told: Mapping[str, Described | str]) -> Mapping[str, Host]:
    """A name that agents of several machines have says nothing, and is left out."""
    answered = [one for one in told.values() if isinstance(one, Described)]
    machines = Counter(name for name, _ in {(one.name, one.host_id) for one in answered})
    hosts = {}
    for address, one in told.items():
        node = node_of(urlsplit(f"//{address}").hostname or address)
        if isinstance(one, str):
            hosts[address] = Host((node,), address=address)
            continue
        names = (one.name, node) if machines[one.name] == 1 else (node,)
        gpu = one.gpus[0] if one.gpus else ""
        hosts[address] = Host(tuple(dict.fromkeys(names)), gpu, bool(one.rdma_devices), address)
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
    if (found := _normal(text)) is not None:
        return found
    brackets = text.count(":") > 1 and "[" not in text and "/" not in text
    hint = "an IPv6 address goes in brackets, as [::1]:8600" if brackets else "give HOST:PORT"
    raise UsageError(f"--peers: {text!r} is no agent's address: {hint}")


def _normal(text: str) -> str | None:
    """As host:port; None for what is no address."""
    try:
        parts = urlsplit(f"//{text}")
        port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError:  # a port beyond 65535, a broken IPv6 address
        return None
    if not port or not parts.hostname or parts.netloc != text or "@" in text or "/" in text:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"


async def _asked(agent: Agent) -> Described | str:
    try:
        return await agent.describe()
    except AgentUnreached as error:
        return f"{error}: is 'kvferry probe serve' running there, with a --host that this machine reaches?"
    except AgentError as error:
        return str(error)
