"""Runs of bytes that a move copies from pool to pool."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.pool_spec import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Piece i: `nbytes[i]` bytes from `src_offset[i]` of source region `src_region[i]` to the destination's.

    All are int64 [N]. Pieces of layers 0 to l end before index `layer_ends[l]`, int64 [layers].
    """

    src_region: Ints
    src_offset: Ints
    dst_region: Ints
    dst_offset: Ints
    nbytes: Ints
    layer_ends: Ints

    def __len__(self) -> int:
        return len(self.nbytes)

    @property
    def moved_bytes(self) -> int:
        return int(self.nbytes.sum())

    def part(self, start: int, end: int) -> "Pieces":
        """Pieces `start` to `end` - 1, as views."""
        return Pieces(
            self.src_region[start:end],
            self.src_offset[start:end],
            self.dst_region[start:end],
            self.dst_offset[start:end],
            self.nbytes[start:end],
            np.clip(self.layer_ends - start, 0, end - start),
        )

    def coalesced(self) -> "Pieces":
        """The same bytes in fewer pieces: neighbours in source and destination become one.

        Within each layer pieces are ordered by where they start in the source; layers stay apart. The
        destination ranges must not overlap: the order of writes is not kept.
        """
        if not len(self):
            return self
        layer = np.searchsorted(self.layer_ends, np.arange(len(self)), side="right")
        order = np.lexsort((self.src_offset, self.src_region, layer))
        src_region, src_offset = self.src_region[order], self.src_offset[order]
        dst_region, dst_offset = self.dst_region[order], self.dst_offset[order]
        nbytes = self.nbytes[order]
        # sorted by layer first, so `layer` itself is in order
        joins = (
            (layer[1:] == layer[:-1])
            & (src_region[1:] == src_region[:-1])
            & (dst_region[1:] == dst_region[:-1])
            & (src_offset[1:] == src_offset[:-1] + nbytes[:-1])
            & (dst_offset[1:] == dst_offset[:-1] + nbytes[:-1])
        )
        starts = np.flatnonzero(np.concatenate(([True], ~joins)))
        return Pieces(
            src_region[starts],
            src_offset[starts],
            dst_region[starts],
            dst_offset[starts],
            np.add.reduceat(nbytes, starts),
            np.searchsorted(starts, self.layer_ends),
        )

    def addresses(self, src_bases: Ints, dst_bases: Ints) -> tuple[Ints, Ints]:
        """Where each piece starts in memory, given each region's address: (source, destination)."""
        return src_bases[self.src_region] + self.src_offset, dst_bases[self.dst_region] + self.dst_offset

    def check(self, src_region_bytes: Sequence[int], dst_region_bytes: Sequence[int]) -> None:
        """Impossible where a piece reaches outside its regions: neither library checks both sides."""
        _inside("source", self.src_region, self.src_offset, self.nbytes, src_region_bytes)
        _inside("destination", self.dst_region, self.dst_offset, self.nbytes, dst_region_bytes)


def _inside(side: str, region: Ints, offset: Ints, nbytes: Ints, region_bytes: Sequence[int]) -> None:
    if not len(region):
        return
    if region.min() < 0 or region.max() >= len(region_bytes):
        raise Impossible(f"{side}: a piece is in none of {len(region_bytes)} regions")
    ends = np.asarray(region_bytes, dtype=np.int64)[region]
    outside = np.flatnonzero((offset < 0) | (nbytes < 1) | (offset + nbytes > ends))
    if len(outside):
        at = outside[0]
        raise Impossible(
            f"{side}: {nbytes[at]} bytes at {offset[at]} do not fit region {region[at]} of {ends[at]} bytes"
        )
