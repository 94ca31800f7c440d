"""What the destination of one room is."""

from dataclasses import dataclass

from kvferry.integrations.handoff.scales import Scales
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import Ints

__all__ = ["Expected"]


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """`wanted` are the scales that fp8 values must be in, by rank, empty for any; `scales` are filled with
    those that they are in."""

    room: int
    at: Place
    tokens: int
    page_size: int
    verify: bool
    wanted: Scales
    scales: Scales

    @property
    def used(self) -> Ints:
        """The pages that will be written."""
        return self.at.used(self.page_size, self.tokens)
