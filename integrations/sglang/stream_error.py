"""Errors that a worker tells in a stream, after it has answered 200."""

import re

import msgspec

from kvferry.integrations.sglang.errors import ApiError


class _Error(msgspec.Struct):
    message: str = "error"
    code: int | str | None = None


class _ErrorEvent(msgspec.Struct):
    error: _Error


class _Finish(msgspec.Struct):
    type: str = ""
    message: str = "aborted"
    status_code: int | None = None


class _FinishMeta(msgspec.Struct):
    finish_reason: _Finish | None = None


class _AbortEvent(msgspec.Struct):
    meta_info: _FinishMeta


def stream_error(chunk: bytes) -> tuple[int, str] | None:
    """(status, message) when a stream's bytes hold an error: SGLang answers 200 and then tells.

    As an event {"error": ...}; /generate tells a failure while computing or moving KV as an event whose
    finish reason is an abort with a status (one without a status was asked for by somebody).
    """
    at = chunk.find(b'data: {"error"')
    if at >= 0:
        line = chunk[at + 6 :].split(b"\n", 1)[0]
        try:
            error = msgspec.json.decode(line, type=_ErrorEvent).error
        except msgspec.DecodeError:
            return 500, line.decode(errors="replace")
        return (error.code if isinstance(error.code, int) and error.code >= 400 else 500), error.message
    at = chunk.find(b'"type":"abort"')
    if at < 0:
        return None
    line = chunk[chunk.rfind(b"\n", 0, at) + 1 :].split(b"\n", 1)[0]
    try:
        finish = msgspec.json.decode(line.removeprefix(b"data: "), type=_AbortEvent).meta_info.finish_reason
    except msgspec.DecodeError:
        return None
    if finish is None or finish.type != "abort" or (finish.status_code or 0) < 400:
        return None
    return finish.status_code or 500, finish.message


_ABORTED = re.compile(rb'"(?:finish_reason|type)"\s*:\s*"abort"')


def aborted(answer: bytes) -> bool:
    """Whether an answer's end says that its worker gave it up: whole it is not, whatever its status.

    Text inside the answer cannot say so: its quotes are escaped.
    """
    return _ABORTED.search(answer) is not None


def error_body(status: int, message: str) -> bytes:
    """An error told in a stream, as the answer it should have been."""
    kind = "invalid_request_error" if status < 500 else "upstream_error"
    return ApiError(message, status=status, kind=kind).body()
