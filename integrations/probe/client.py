"""An agent as `kvferry probe run` talks to it."""

import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from kvferry.integrations.probe.messages import (
    Connect,
    Connected,
    Described,
    Failure,
    Line,
    Moves,
    Open,
    Opened,
    Wanted,
)
from kvferry.integrations.probe.moves import ROUNDS
from kvferry.models.paths.sample import Sample

__all__ = ["Agent", "AgentError", "AgentUnreached"]

CONNECT_S = 5.0
DESCRIBE_S = 60.0  # it loads libraries
OPEN_S = 120.0  # it registers memory
CLOSE_S = 30.0
# Beyond a move's own deadline: another probe's move may be waited for.
PATIENCE_S = 60.0
UNREADABLE = msgspec.DecodeError, RecursionError  # the latter: nested too deeply
T = TypeVar("T")


class AgentError(RuntimeError):
    """An agent that cannot be reached, or that says no; the message names it and says why."""


class AgentUnreached(AgentError):
    """Nobody accepts connections at its address."""


class Agent:
    """`address`: host:port. Every call raises AgentError for whatever goes wrong."""

    def __init__(self, http: aiohttp.ClientSession, address: str, token: str | None = None) -> None:
        self.address = address
        self._http = http
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def describe(self) -> Described:
        return await self._ask("GET", "/v1/agent", None, Described, DESCRIBE_S)

    async def open(self, asked: Open) -> Opened:
        return await self._ask("POST", "/v1/sessions", asked, Opened, OPEN_S)

    async def connect(self, session: str, asked: Connect) -> float:
        """What the first contact took, s."""
        limit_s = asked.deadline_s + PATIENCE_S
        found = await self._ask("POST", f"/v1/sessions/{session}/peers", asked, Connected, limit_s)
        return found.first_contact_s

    async def moves(
        self, session: str, peer: str, wanted: Sequence[Wanted], deadline_s: float
    ) -> AsyncIterator[Sample]:
        """As they end; the last may be followed by AgentError."""
        asked = Moves(peer, tuple(wanted), deadline_s)
        widest = max(each.concurrency for each in wanted)
        silence_s = 3.0 * deadline_s * widest + PATIENCE_S  # moves at once are told when all are done
        path = f"/v1/sessions/{session}/moves"
        most, told = sum(each.concurrency for each in wanted) * ROUNDS, 0
        async with self._request("POST", path, asked, sock_read=silence_s) as answer:
            async for line in answer.content:
                if (told := told + 1) > most:
                    raise AgentError(f"{self.address} tells of more moves than it was asked for")
                yield self._sample(line)

    @asynccontextmanager
    async def awake(self, session: str) -> AsyncIterator[None]:
        """Have it expect moves into a session, as the destination of a handoff does."""
        async with self._request("POST", f"/v1/sessions/{session}/awake"):
            yield

    async def end(self, session: str, *, settled: bool) -> None:
        async with self._request("DELETE", f"/v1/sessions/{session}?settled={settled:d}", total=CLOSE_S):
            pass

    async def _ask(self, method: str, path: str, body: object, kind: type[T], limit_s: float) -> T:
        async with self._request(method, path, body, total=limit_s) as answer:
            raw = await answer.read()
        try:
            return msgspec.json.decode(raw, type=kind)
        except UNREADABLE as error:
            raise AgentError(
                f"{self.address} is no probe agent, or one of another version: {error}"
            ) from error

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: object = None, **limits: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        options: dict[str, Any] = {} if body is None else {"data": msgspec.json.encode(body)}
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_S, **limits)
        try:
            async with self._http.request(
                method, f"http://{self.address}{path}", headers=self._headers, timeout=timeout, **options
            ) as answer:
                if answer.status >= 400:
                    raise AgentError(self._why(answer.status, await answer.read()))
                yield answer
        except aiohttp.ConnectionTimeoutError as error:
            raise AgentUnreached(f"{self.address} does not answer") from error
        except TimeoutError as error:
            raise AgentError(f"{self.address} does not answer") from error
        except aiohttp.ClientConnectorError as error:
            if error.os_error.errno == errno.ECONNREFUSED:
                raise AgentUnreached(f"{self.address} refuses connections") from error
            raise AgentUnreached(f"{self.address}: {error.os_error.strerror or error}") from error
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:  # the second: a line without end
            raise AgentError(f"{self.address}: {error or type(error).__name__}") from error

    def _why(self, status: int, raw: bytes) -> str:
        try:
            return f"{self.address}: {msgspec.json.decode(raw, type=Failure).error.message}"
        except UNREADABLE:
            return f"{self.address} is no probe agent: it answers with status {status}"

    def _sample(self, line: bytes) -> Sample:
        try:
            told = msgspec.json.decode(line, type=Line)
        except UNREADABLE as error:
            raise AgentError(f"{self.address} is no probe agent of this version: {error}") from error
        if (moved := told.moved) is None:
            raise AgentError(f"{self.address}: {told.error.message if told.error else 'an empty line'}")
        return Sample(moved.moved_bytes, moved.descriptors, moved.total_s, moved.concurrency)
