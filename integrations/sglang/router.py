"""The HTTP side of `kvferry serve`."""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from kvferry.integrations.sglang import api
from kvferry.integrations.sglang.body import Endpoint, parse
from kvferry.integrations.sglang.errors import ApiError, BadRequest, Stopping
from kvferry.integrations.sglang.ferry import Ferry
from kvferry.integrations.sglang.leg import LegFailed
from kvferry.integrations.sglang.relay import failure_response, relay

log = logging.getLogger("kvferry.router")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPEN_PATHS = frozenset(("/health", "/ready", "/metrics"))
NOT_FORWARDED = frozenset(
    (
        "host",
        "content-length",
        "content-encoding",  # aiohttp has decompressed the body
        "content-type",
        "connection",
        "keep-alive",
        "transfer-encoding",
        "accept-encoding",
        "expect",
        "te",
        "trailer",
        "upgrade",
        "proxy-authorization",
    )
)
FERRY = web.AppKey("ferry", Ferry)


def make_app(ferry: Ferry) -> web.Application:
    """All routes. Errors, our own and aiohttp's, are answered in OpenAI's shape."""
    app = web.Application(middlewares=[_errors, _authorised], client_max_size=ferry.settings.max_payload_size)
    app[FERRY] = ferry
    for endpoint in Endpoint:
        app.router.add_post(endpoint.value, _handler(ferry, endpoint))
    api.add_routes(app, ferry)
    return app


def _handler(ferry: Ferry, endpoint: Endpoint) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        if ferry.stopping:
            raise Stopping
        started_s = ferry.clock()
        body = parse(endpoint, await request.read())
        try:
            passage = ferry.passage(body, started_s, request.headers)
        except ApiError:
            ferry.metrics.refused(endpoint.value)
            raise
        ferry.metrics.in_flight.inc()
        task = asyncio.current_task()
        assert task is not None
        ferry.serving.add(task)
        try:
            answer, call = await ferry.answer(passage, _forwarded(request))
            return await relay(ferry, passage, answer, call, request)
        except LegFailed as failed:
            passage.finish("rejected" if failed.status < 500 else "failed", str(failed))
            return failure_response(failed, passage)
        except ApiError as error:
            if passage.decision is None:
                ferry.metrics.refused(endpoint.value)
            passage.finish("failed", error.message)
            error.headers.setdefault("x-kvferry-id", passage.request.id)
            raise
        except asyncio.CancelledError:
            if ferry.stopping:
                passage.finish("failed", "the router was stopped")
                return Stopping().response()
            passage.finish("cancelled", "client left")
            raise
        except Exception as error:
            passage.finish("failed", f"{type(error).__name__} in the router")
            raise
        finally:
            ferry.metrics.in_flight.dec()
            ferry.serving.discard(task)

    return handle


def _forwarded(request: web.Request) -> dict[str, str]:
    """The client's headers as they go to the workers."""
    headers = {name: value for name, value in request.headers.items() if name.lower() not in NOT_FORWARDED}
    headers["Accept-Encoding"] = "identity"
    headers["Content-Type"] = "application/json"  # it has been read as JSON, whatever a curl -d calls it
    return headers


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except web.HTTPRequestEntityTooLarge:
        limit = request.app[FERRY].settings.max_payload_size
        return BadRequest(
            f"body is larger than {limit} bytes: send less, or raise --max-payload-size",
            status=413,
            code="request_too_large",
        ).response()
    except web.RequestPayloadError as error:
        return BadRequest(f"body cannot be read: {error.__cause__ or error}").response()
    except web.HTTPException as error:
        if error.status < 400:
            raise
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        told = f"{error.reason}: {request.method} {request.path}"
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return ApiError(told, status=error.status, kind=kind, headers=headers).response()
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return ApiError("the router failed on this request: see its log").response()


@web.middleware
async def _authorised(request: web.Request, handler: Handler) -> web.StreamResponse:
    key = request.app[FERRY].settings.api_key
    if key is not None and request.path not in OPEN_PATHS:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(
            given.encode(errors="surrogateescape"), f"Bearer {key.get_secret_value()}".encode()
        ):
            raise ApiError(
                "missing or wrong API key: send Authorization: Bearer <key>",
                status=401,
                kind="invalid_request_error",
                code="invalid_api_key",
            )
    return await handler(request)
