"""A worker's own error, in the shape that OpenAI's clients read."""

from typing import Any

import msgspec

_FIELDS = {"message", "type", "param", "code"}


def in_openai_shape(status: int, body: bytes) -> bytes:
    """The error with a whole `error` object; what else the worker told stays beside it.

    SGLang tells {"object": "error", "message": ...} or {"error": {"message": ...}}, FastAPI
    {"detail": ...}. Bodies that are no JSON object, or lack nothing, pass byte for byte.
    """
    try:
        told = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body
    if not isinstance(told, dict):
        return body
    source = told.get("error", told)
    if not isinstance(source, dict):
        source = {"message": source}
    if "error" in told and source.keys() >= _FIELDS:
        return body
    kind = "invalid_request_error" if status < 500 else "upstream_error"
    error = {
        "message": _message(source, status),
        "type": source.get("type") or kind,
        "param": source.get("param"),
        "code": source.get("code"),
    }
    return msgspec.json.encode(told | {"error": error})


def _message(told: dict[str, Any], status: int) -> str:
    message = told.get("message", told.get("detail"))
    if isinstance(message, str):
        return message
    return msgspec.json.encode(message).decode() if message else f"the worker answered {status}"
