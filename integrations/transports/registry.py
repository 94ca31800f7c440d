"""Transports by name; each library is loaded when its transport is opened, not before."""

import importlib

from kvferry.integrations.transports.base import Transport
from kvferry.integrations.transports.errors import Refused

__all__ = ["names", "open_transport"]

WHERE = {"local": "Local", "mooncake": "Mooncake", "nixl": "Nixl"}


def names() -> tuple[str, ...]:
    """The transports there are, whether or not their libraries are installed."""
    return tuple(WHERE)


def open_transport(name: str, agent: str, host: str = "127.0.0.1") -> Transport:
    """Open a transport: `agent` names this process to its peers, `host` is where they reach it.

    Raises `Missing` (saying what to install) where the library does not load, `Refused` for an unknown name.
    """
    if name not in WHERE:
        raise Refused(f"no transport {name!r}: there are {', '.join(WHERE)}")
    module = importlib.import_module(f"kvferry.integrations.transports.{name}")
    transport: Transport = getattr(module, WHERE[name])(agent, host)
    return transport
