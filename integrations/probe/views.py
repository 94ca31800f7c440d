"""What an agent answers; see `messages`."""

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from kvferry.integrations.probe.machine import describe
from kvferry.integrations.probe.messages import Connect, Connected, ErrorBody, Line, Moves, Open
from kvferry.integrations.probe.sessions import Sessions
from kvferry.integrations.sglang.errors import ApiError, BadRequest
from kvferry.integrations.transports.errors import DeadlinePassed, Missing, Refused, TransportError

__all__ = ["Views", "guarded"]

log = logging.getLogger("kvferry.probe")

NDJSON = "application/x-ndjson"
WAKE_S = 1e-3
AWAKE_S = 900.0  # whoever asked may have gone without a word
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def guarded(token: str | None) -> Middleware:
    """Every error in OpenAI's shape; 401 without the token, where there is one."""
    wanted = None if token is None else f"Bearer {token}".encode()

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        try:
            if wanted is not None and not hmac.compare_digest(given, wanted):
                raise ApiError("wrong token, or none", status=401, kind="authentication_error")
            return await handler(request)
        except ApiError as error:
            return error.response()
        except TransportError as error:
            return _meaning(error).response()
        except web.HTTPException as error:
            return ApiError(error.reason, status=error.status, kind="invalid_request_error").response()
        except Exception as error:
            # The agent serves on whatever a library did; the log has what it was.
            log.exception("%s %s", request.method, request.path)
            return ApiError(f"{type(error).__name__}: see the agent's log").response()

    return answer


class Views:
    """Handlers. `advertise`: see `agent.running`."""

    def __init__(self, sessions: Sessions, name: str | None, advertise: str | None) -> None:
        self._sessions, self._name, self._advertise = sessions, name, advertise
        self._id = secrets.token_hex(8)
        # Moves of two probes at once would measure each other.
        self._moving = asyncio.Lock()

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/v1/agent", self.agent)
        app.router.add_post("/v1/sessions", self.open)
        app.router.add_post("/v1/sessions/{id}/peers", self.connect)
        app.router.add_post("/v1/sessions/{id}/moves", self.moves)
        app.router.add_post("/v1/sessions/{id}/awake", self.awake)
        app.router.add_delete("/v1/sessions/{id}", self.end)

    async def agent(self, _: web.Request) -> web.Response:
        return _json(await asyncio.to_thread(describe, self._name, self._id))

    async def open(self, request: web.Request) -> web.Response:
        asked = await _body(request, Open)
        async with self._moving:  # opening takes the processor from moves
            session = await self._sessions.open(asked, self._host(request))
        mib = asked.nbytes / 2**20
        log.info(
            "session %s: %s measures over %s with %.4g MiB on %s",
            session.name, request.remote, asked.transport, mib, asked.device,
        )  # fmt: skip
        return _json(session.opened)

    async def connect(self, request: web.Request) -> web.Response:
        asked = await _body(request, Connect)
        with self._sessions.using(request.match_info["id"]) as session:
            async with self._moving:
                took_s = await asyncio.to_thread(
                    session.connect, asked.name, asked.metadata, asked.deadline_s
                )
        return _json(Connected(took_s))

    async def moves(self, request: web.Request) -> web.StreamResponse:
        asked = await _body(request, Moves)
        with self._sessions.using(request.match_info["id"]) as session:
            lines = web.StreamResponse(headers={"Content-Type": NDJSON})
            async with self._moving:
                await lines.prepare(request)
                for wanted in asked.moves:
                    try:
                        moved = await asyncio.to_thread(session.move, asked.peer, wanted, asked.deadline_s)
                    except TransportError as error:
                        await lines.write(_line(Line(error=ErrorBody(str(error), _meaning(error).kind))))
                        break
                    await lines.write(b"".join(_line(Line(each)) for each in moved))
        await lines.write_eof()
        return lines

    async def awake(self, request: web.Request) -> web.StreamResponse:
        """A transport that polls seldom while idle, which a handoff's destination is not, polls often."""
        name = request.match_info["id"]
        with self._sessions.using(name) as session:
            answer = web.StreamResponse()
            await answer.prepare(request)
            until_s = time.monotonic() + AWAKE_S
            while time.monotonic() < until_s and self._sessions.in_use(name):  # it may be ended meanwhile
                session.wake()
                await asyncio.sleep(WAKE_S)
        return answer

    async def end(self, request: web.Request) -> web.Response:
        settled = request.query.get("settled") == "1"
        await self._sessions.end(request.match_info["id"], settled=settled)
        return web.Response(status=204)

    def _host(self, request: web.Request) -> str:
        if self._advertise is not None:
            return self._advertise
        reached = request.transport.get_extra_info("sockname") if request.transport else None
        return str(reached[0]) if reached else "127.0.0.1"


async def _body(request: web.Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:  # the latter: nested too deeply
        raise BadRequest(f"invalid body: {error}") from error


def _meaning(error: TransportError) -> ApiError:
    if isinstance(error, Missing):
        return ApiError(str(error), status=501, code="missing_library")
    if isinstance(error, Refused):
        return BadRequest(str(error))
    return ApiError(
        str(error), status=504 if isinstance(error, DeadlinePassed) else 502, kind="upstream_error"
    )


def _json(answer: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def _line(answer: Line) -> bytes:
    return msgspec.json.encode(answer) + b"\n"
