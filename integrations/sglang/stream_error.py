"""Errors that a worker tells in a stream, after it has answered 200."""

import msgspec

from kvferry.integrations.sglang.errors import ApiError


class _Error(msgspec.Struct):
    message: str = "error"
    code: int | str | None = None


class _ErrorEvent(msgspec.Struct):
    error: _Error


def stream_error(chunk: bytes) -> tuple[int, str] | None:
    """(status, message) when a stream's bytes are an error event: SGLang answers 200 and then tells."""
    at = chunk.find(b'data: {"error"')
    if at < 0:
        return None
    line = chunk[at + 6 :].split(b"\n", 1)[0]
    try:
        error = msgspec.json.decode(line, type=_ErrorEvent).error
    except msgspec.DecodeError:
        return 500, line.decode(errors="replace")
    return (error.code if isinstance(error.code, int) and error.code >= 400 else 500), error.message


def error_body(status: int, message: str) -> bytes:
    """An error told in a stream, as the answer it should have been."""
    kind = "invalid_request_error" if status < 500 else "upstream_error"
    return ApiError(message, status=status, kind=kind).body()
