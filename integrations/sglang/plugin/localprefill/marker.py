"""How a request says that it is to be prefilled here."""

from typing import Any

from kvferry.integrations.sglang.plugin.wire import LOCAL_MARK


def translate(_: Any, request: Any, raw: Any = None) -> None:
    """Before TokenizerManager.generate_request: a body's `do_local_prefill: true` becomes a bootstrap host,
    the one field of SGLang's own that reaches the scheduler. A request with a bootstrap room is a split one.

    `raw` is Starlette's request, which keeps the body it has parsed.
    """
    body = getattr(raw, "_json", None)
    if (
        not isinstance(body, dict)
        or body.get(LOCAL_MARK) is not True
        or not hasattr(request, "bootstrap_room")
    ):
        return
    rooms = request.bootstrap_room
    if rooms is None or (isinstance(rooms, list) and all(room is None for room in rooms)):
        request.bootstrap_host = LOCAL_MARK
        request.bootstrap_room = None  # SGLang takes a list for one prompt to its scheduler, which ends on it


def asks_local(received: Any) -> bool:
    """Whether a request that reached the scheduler is to be prefilled here."""
    return received.bootstrap_room is None and received.bootstrap_host == LOCAL_MARK


def is_local(req: Any) -> bool:
    """Whether SGLang's Req is one that this worker prefills itself."""
    return getattr(req, "kvferry_local", False) is True
