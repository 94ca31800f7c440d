"""What the destination of one room is."""

from dataclasses import dataclass

from kvferry.integrations.handoff.scales import Scales
from kvferry.models.moves.place import Place

__all__ = ["Expected"]


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """`at` begins in its first page and has no page that holds no token.

    `wanted` are the scales that fp8 values must be in, by rank, empty for any; `scales` are filled with those
    that they are in.
    """

    room: int
    at: Place
    tokens: int
    verify: bool
    wanted: Scales
    scales: Scales
