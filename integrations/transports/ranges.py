"""Which registered region a descriptor lies in: the check that the libraries do not do for both sides."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvferry.integrations.transports.base import Region
from kvferry.integrations.transports.errors import BadRange, Refused

__all__ = ["Ranges"]


class Ranges:
    """One side's regions, sorted by address."""

    __slots__ = ("_ends", "_order", "_starts", "devices", "kind", "regions")

    def __init__(self, regions: tuple[Region, ...]) -> None:
        """Raises `Refused` for no region, for regions that overlap and for more than one kind of memory."""
        kinds = {region.kind for region in regions}
        if len(kinds) != 1:
            raise Refused(f"a pool is one kind of memory, not {sorted(kinds) or 'nothing'}")
        self.regions = regions
        self.kind: Literal["cpu", "cuda"] = kinds.pop()
        starts = np.array([region.address for region in regions], np.int64)
        ends = np.array([region.end for region in regions], np.int64)
        self._order = np.argsort(starts, kind="stable")
        self._starts, self._ends = starts[self._order], ends[self._order]
        if np.any(self._starts[1:] < self._ends[:-1]):
            raise Refused("regions overlap")
        self.devices = np.array([region.device for region in regions], np.int64)

    def find(
        self, side: Literal["source", "destination"], addresses: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> NDArray[np.intp]:
        """The region's index of every descriptor; raises `BadRange` for the first that is not inside one."""
        place = np.searchsorted(self._starts, addresses, side="right") - 1
        # Subtracting cannot overflow as adding could: both are positive int64 where the first test holds.
        inside = (place >= 0) & (nbytes > 0)
        inside[inside] &= nbytes[inside] <= self._ends[place[inside]] - addresses[inside]
        if not inside.all():
            first = int(np.argmin(inside))
            raise BadRange(side, first, int(addresses[first]), int(nbytes[first]))
        return self._order[place]
