"""Transports for tests that make many."""

from typing import Any

from kvferry.integrations.transports.registry import open_transport


class Lasting:
    """A transport that lasts as long as its process: Mooncake's engine takes a second to close, in which
    nothing else runs in Python."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> None:
        """Not yet."""
        LEFT.append(self._inner)


LEFT: list[Any] = []


def opened(name: str, agent: str, closes: bool) -> Any:
    """`closes`: its `close` really does."""
    transport = open_transport(name, agent)
    return transport if closes or name != "mooncake" else Lasting(transport)
