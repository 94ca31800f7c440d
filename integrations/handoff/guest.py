"""A source process, as the destination knows it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvferry.integrations.handoff.channel import Channel
from kvferry.integrations.handoff.messages import VERSION, Begin, Hello, Message, ToDestination
from kvferry.integrations.handoff.part import Part, Route, routes_between
from kvferry.integrations.transports.errors import Refused, TransportError
from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.pool_spec import PoolSpec

__all__ = ["Guest"]

log = logging.getLogger(__name__)

# Owners whose deadline is over tell the source themselves: one that reads nothing must not hold them up.
PATIENCE_S = 0.25


@dataclass(slots=True, eq=False)
class Guest:
    """`routes` are all that its worker has for the ranks here, `own` those of its process.

    `parts`: its moves that may still do something, `parked`: those whose room nobody expects yet.
    """

    agent: str
    worker: tuple[PoolSpec, ...]
    routes: tuple[Route, ...]
    own: tuple[Route, ...]
    channel: Channel[ToDestination]
    parts: dict[int, Part] = field(default_factory=dict)
    parked: dict[int, Begin] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        hello: ToDestination,
        channel: Channel[ToDestination],
        worker: Sequence[PoolSpec],
        here: Mapping[int, object],
    ) -> "Guest":
        """Raises `Refused` where the two cannot work together."""
        if not isinstance(hello, Hello):
            raise Refused(f"a {type(hello).__name__} before Hello")
        if hello.version != VERSION:
            raise Refused(f"version {hello.version} of the handoff's messages, not {VERSION}")
        if not hello.here or not set(hello.here) <= set(range(len(hello.worker))):
            raise Refused(f"ranks {hello.here} of a worker of {len(hello.worker)}")
        try:
            routes = routes_between(hello.worker, worker, here)
        except Impossible as error:
            raise Refused(error.reason) from error
        own = tuple(route for route in routes if route.src_rank in hello.here)
        if not own:
            raise Refused(f"ranks {hello.here} give nothing to the ranks here, which get it from others")
        return cls(hello.agent[:200], hello.worker, routes, own, channel)

    def tell(self, message: Message) -> None:
        """Send, or do nothing where that cannot be: its own thread notices a connection that is gone, and a
        source that is not answered has its own deadline."""
        try:
            self.channel.send(message, PATIENCE_S)
        except TransportError as error:
            log.info("%s: %s not sent: %s", self.agent, type(message).__name__, error)
