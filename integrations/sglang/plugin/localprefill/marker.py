"""How a request says that it is to be prefilled here."""

from typing import Any

from kvferry.integrations.sglang.plugin.wire import LOCAL_MARK


def translate(_: Any, request: Any, raw: Any = None) -> None:
    """Before TokenizerManager.generate_request: a body's `do_local_prefill: true` becomes a bootstrap host,
    the one field of SGLang's own that reaches the scheduler. A request with a bootstrap room is a split one,
    but for one that says itself by its host that it is not.

    `raw` is Starlette's request, which keeps the body it has parsed.
    """
    if not hasattr(request, "bootstrap_room"):
        return
    body, rooms = getattr(raw, "_json", None), request.bootstrap_room
    marked = isinstance(body, dict) and body.get(LOCAL_MARK) is True
    alone = rooms is None or (isinstance(rooms, list) and all(room is None for room in rooms))
    if request.bootstrap_host == LOCAL_MARK or (marked and alone):
        request.bootstrap_host = LOCAL_MARK
        request.bootstrap_room = None  # SGLang takes a list for one prompt to its scheduler, which ends on it


def asks_local(received: Any) -> bool:
    """Whether a request that reached the scheduler is to be prefilled here."""
    return received.bootstrap_room is None and received.bootstrap_host == LOCAL_MARK


def is_local(req: Any) -> bool:
    """Whether SGLang's Req is one that this worker prefills itself."""
    return getattr(req, "kvferry_local", False) is True
