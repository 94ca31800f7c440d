"""Pieces cut into batches that a transport's queue holds."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kvferry.models.moves.pieces import Pieces
from kvferry.models.moves.pool_spec import Ints

# A Mooncake TCP lane holds 1024 + 1024 pending descriptors per peer and may never recover from more.
MOST_DESCRIPTORS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A batch that may go once layer `after_layer` (and all before) is computed.

    `finishes` counts the layers that have arrived whole when this chunk and all before it have.
    """

    pieces: Pieces
    after_layer: int
    finishes: int


def cut(
    pieces: Pieces,
    most_descriptors: int = MOST_DESCRIPTORS,
    most_bytes: int | None = None,
    layers_each: int | None = None,
) -> Iterator[Chunk]:
    """Chunks in layer order, each of at most `most_descriptors` pieces and `most_bytes` bytes.

    A larger piece is split. `layers_each` ends a chunk after every so many layers, so that what is
    computed travels while later layers are being computed; None fills chunks across layers.
    ValueError where a limit is below 1.
    """
    for name, limit in (("descriptors", most_descriptors), ("bytes", most_bytes), ("layers", layers_each)):
        if limit is not None and limit < 1:
            raise ValueError(f"a chunk of at most {limit} {name} holds nothing")
    if most_bytes is not None:
        pieces = _split(pieces, most_bytes)
    total = len(pieces)
    walls = pieces.layer_ends[layers_each - 1 :: layers_each] if layers_each else pieces.layer_ends[:0]
    walls = np.append(walls, total)
    before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(pieces.nbytes)))
    start = 0
    while start < total:
        end = min(start + most_descriptors, int(walls[np.searchsorted(walls, start, side="right")]))
        if most_bytes is not None:
            end = min(end, int(np.searchsorted(before, before[start] + most_bytes, side="right")) - 1)
        finishes = int(np.searchsorted(pieces.layer_ends, end, side="right"))
        yield Chunk(pieces.part(start, end), pieces.layer_of(end - 1), finishes)
        start = end


def _split(pieces: Pieces, most_bytes: int) -> Pieces:
    """Every piece in parts of at most `most_bytes`, in order."""
    parts = -(-pieces.nbytes // most_bytes)
    if not len(parts) or parts.max() == 1:
        return pieces
    ends = np.cumsum(parts)
    nth = np.arange(ends[-1]) - np.repeat(ends - parts, parts)

    def each(values: Ints) -> Ints:
        return np.repeat(values, parts)

    return replace(
        pieces,
        src_region=each(pieces.src_region),
        src_offset=each(pieces.src_offset) + nth * most_bytes,
        dst_region=each(pieces.dst_region),
        dst_offset=each(pieces.dst_offset) + nth * most_bytes,
        nbytes=np.minimum(each(pieces.nbytes) - nth * most_bytes, most_bytes),
        layer_ends=np.concatenate((np.zeros(1, dtype=np.int64), ends))[pieces.layer_ends],
    )
