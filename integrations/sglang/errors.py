"""Errors as OpenAI's clients expect them."""

from collections.abc import Mapping

import msgspec
from aiohttp import web


class ApiError(Exception):
    """An error to answer with: {"error": {message, type, param, code}} and an HTTP status."""

    status = 500
    kind = "server_error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        kind: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status or self.status
        self.kind = kind or self.kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": self.kind,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )

    def response(self) -> web.Response:
        return web.Response(
            status=self.status, body=self.body(), content_type="application/json", headers=self.headers
        )

    def event(self) -> bytes:
        """The error as a server-sent event. No [DONE] follows it: the stream did not complete."""
        return b"data: " + self.body() + b"\n\n"


class BadRequest(ApiError):
    status = 400
    kind = "invalid_request_error"


class NoWorker(ApiError):
    """No worker can run the request now."""

    status = 503
    kind = "server_error"


class Stopping(ApiError):
    """The router is told to stop and its grace is over."""

    status = 503
    kind = "server_error"

    def __init__(self) -> None:
        super().__init__("the router is stopping: ask again")


class Upstream(ApiError):
    """A worker failed and no other could take over."""

    status = 502
    kind = "upstream_error"
