"""A simulated worker behind SGLang's HTTP interface."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from aiohttp import ClientConnectionError, web

from kvferry.integrations.sglang.body import Endpoint
from kvferry.integrations.sglang.errors import ApiError, BadRequest
from kvferry.integrations.sglang.simulated.asked import Asked, asked
from kvferry.integrations.sglang.simulated.flight import Failure, Flight, Inbox
from kvferry.integrations.sglang.simulated.identity import Identity
from kvferry.integrations.sglang.simulated.reply import Reply, failed
from kvferry.integrations.sglang.simulated.worker import SimulatedWorker

log = logging.getLogger("kvferry.simulated")

MAX_BODY_BYTES = 1 << 28
LEFT = Failure(0, "the client has left")
JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream; charset=utf-8"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Abort(msgspec.Struct):
    rid: str | None = None
    abort_all: bool = False


_abort = msgspec.json.Decoder(_Abort).decode


def make_app(worker: SimulatedWorker, identity: Identity) -> web.Application:
    """All routes of one worker."""
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors])
    server = _Server(worker, identity)
    for endpoint in Endpoint:
        app.router.add_post(endpoint.value, server.handler(endpoint))
    for path in ("/health", "/health_generate", "/ready"):
        app.router.add_get(path, server.health)
    for path in ("/server_info", "/get_server_info"):
        app.router.add_get(path, server.server_info)
    for path in ("/model_info", "/get_model_info"):
        app.router.add_get(path, server.model_info)
    app.router.add_get("/v1/models", server.models)
    app.router.add_get("/v1/loads", server.loads)
    app.router.add_post("/abort_request", server.abort)
    app.router.add_route("GET", "/flush_cache", server.flush, name="flush_get")
    app.router.add_route("POST", "/flush_cache", server.flush)
    return app


class _Server:
    def __init__(self, worker: SimulatedWorker, identity: Identity) -> None:
        self.worker, self.identity, self.pump = worker, identity, worker.pump

    def handler(self, endpoint: Endpoint) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            options = self.identity.options
            wanted = asked(endpoint, await request.read(), self.identity.spec.model, options)
            inbox = Inbox()
            with self.pump:
                flights = self.worker.take(wanted, inbox)
            try:
                if wanted.stream:
                    return await self._stream(request, wanted, flights, inbox)
                await inbox.ended(flights)
                return self._whole(wanted, flights)
            except (ConnectionError, ClientConnectionError):
                return web.Response()  # goes nowhere: the client has left
            finally:
                if not all(flight.ended for flight in flights):
                    with self.pump:
                        self.worker.drop(flights, LEFT)

        return handle

    def _whole(self, wanted: Asked, flights: Sequence[Flight]) -> web.Response:
        for flight in flights:
            if flight.failure is not None and flight.failure.status:
                return web.Response(status=flight.failure.status, body=failed(flight.failure), headers=JSON)
        return web.Response(body=Reply(wanted, flights, self.pump).whole(), headers=JSON)

    async def _stream(
        self, request: web.Request, wanted: Asked, flights: Sequence[Flight], inbox: Inbox
    ) -> web.StreamResponse:
        reply = Reply(wanted, flights, self.pump)
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        opening = reply.opening()
        while not all(flight.ended for flight in flights) or inbox.any:
            parts = [reply.event(flight) for flight in await inbox.news()]
            await response.write(opening + b"".join(parts))
            opening = b""
        await response.write(reply.closing())
        await response.write_eof()
        return response

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def server_info(self, _: web.Request) -> web.Response:
        return _json(self.identity.server_info())

    async def model_info(self, _: web.Request) -> web.Response:
        return _json(self.identity.model_info())

    async def models(self, _: web.Request) -> web.Response:
        return _json(self.identity.models())

    async def loads(self, _: web.Request) -> web.Response:
        with self.pump:
            waiting = self.worker.rooms.waiting
            tokens = sum(flight.asked.prompt_tokens for flight in waiting)
            return _json(self.identity.loads(self.worker.engine, len(waiting), tokens))

    async def abort(self, request: web.Request) -> web.Response:
        try:
            told = _abort(await request.read())
        except msgspec.DecodeError as error:
            raise BadRequest(f"invalid body: {error}") from error
        with self.pump:
            self.worker.abort(told.rid or "", told.abort_all)
        return web.Response()

    async def flush(self, _: web.Request) -> web.Response:
        """Of the prefix cache; refused, as in SGLang, while requests are in flight."""
        with self.pump:
            if self.worker.busy:
                return web.Response(status=400, text="Not flushed: requests are in flight.\n")
            self.worker.engine.kv.cache.evict(self.worker.engine.kv.cache.idle_tokens)
        return web.Response(text="Cache flushed.\n")


def _json(answer: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), headers=JSON)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except (web.HTTPException, asyncio.CancelledError):
        raise
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return ApiError("the simulated worker failed on this request: see its log").response()
