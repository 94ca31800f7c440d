"""Where a worker publishes its KV events, from what it says in /server_info."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

HOST = re.compile(r"[\w.:%\[\]-]{1,255}", re.ASCII)  # what ZeroMQ takes for one, and raises at all else
WILDCARDS = frozenset(("*", "0.0.0.0", "::", "[::]"))
MAX_RANKS = 1024
MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Source:
    """The sockets of one data-parallel rank; `replay` is empty where nothing can be asked for again."""

    events: str
    replay: str
    topic: bytes
    page_tokens: int


def sources_of(url: str, info: Mapping[str, Any]) -> tuple[Source, ...]:
    """One source per rank; none when the worker publishes nothing that can be followed.

    Rank r publishes on port base + r of the worker's own host unless it names another. ValueError, naming
    the field, when what it says makes no sense.
    """
    told = info.get("kv_events")
    if not isinstance(told, Mapping) or told.get("publisher") != "zmq":
        return ()
    host = str(told.get("endpoint_host") or "*")
    if host in WILDCARDS:
        host = urlsplit(url).hostname or "127.0.0.1"
        host = f"[{host}]" if ":" in host else host
    if not HOST.fullmatch(host):
        raise ValueError(f"kv_events.endpoint_host is {host[:255]!r}: no host name or address")
    ranks = _within(told, "dp_size", 1, MAX_RANKS, 1)
    base = _within(told, "endpoint_port_base", 1, MAX_PORT - ranks + 1)
    replay = 0
    if told.get("replay_endpoint_port_base") is not None:
        replay = _within(told, "replay_endpoint_port_base", 1, MAX_PORT - ranks + 1)
    page = _within(told, "block_size", 1, 1 << 20)
    topic = str(told.get("topic") or "").encode()
    return tuple(
        Source(f"tcp://{host}:{base + rank}", f"tcp://{host}:{replay + rank}" if replay else "", topic, page)
        for rank in range(ranks)
    )


def _within(told: Mapping[str, Any], name: str, low: int, high: int, default: int | None = None) -> int:
    value = told.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"kv_events.{name} is {value!r}: must be from {low} to {high}")
    return value
