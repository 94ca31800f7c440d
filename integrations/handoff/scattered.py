"""A move piece by piece, from pool to pool."""

import itertools
import time
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from kvferry.integrations.handoff.checksums import page_checksums
from kvferry.integrations.handoff.departure import Departure
from kvferry.integrations.handoff.gate import LayerGate
from kvferry.integrations.handoff.messages import Landed
from kvferry.integrations.handoff.own import Own
from kvferry.integrations.handoff.scales import Scales, packed, part_of
from kvferry.integrations.transports.base import Batch
from kvferry.integrations.transports.kernels.staged import gather
from kvferry.models.moves.pieces import Pieces
from kvferry.models.moves.place import Place
from kvferry.models.moves.plan import Move

__all__ = ["send_scattered"]

BUFFER_BYTES = 4 << 20


def send_scattered(
    departure: Departure,
    own: Own,
    moves: Sequence[Move],
    pieces: Sequence[Pieces],
    scales: Scales,
    verify: bool,
    gate: LayerGate | None = None,
) -> None:
    """All moves in one batch, or, with a gate, in one for the layers that were computed while the last one
    was on the wire. `pieces[i]` are those of `moves[i]`, layer by layer where there is a gate."""
    sides = [
        each.addresses(own.bases[move.src_rank], departure.peering.bases[move.dst_rank])
        for move, each in zip(moves, pieces, strict=True)
    ]
    for start, end in _layers(departure, moves[0].src.layers, gate):
        parts = [slice(_end(each, start), _end(each, end)) for each in pieces]
        batch = (
            np.concatenate([src[part] for (src, _), part in zip(sides, parts, strict=True)]),
            np.concatenate([dst[part] for (_, dst), part in zip(sides, parts, strict=True)]),
            np.concatenate([each.nbytes[part] for each, part in zip(pieces, parts, strict=True)]),
        )
        departure.carry(Batch(*batch))
    for move in moves:
        began_s = time.monotonic()
        sums = _checksums(own, move) if verify else b""
        departure.spent(verify_s=time.monotonic() - began_s if verify else 0.0)
        mine = part_of(scales.get(move.src_rank), move.src, move.heads)
        departure.say(Landed(departure.number, move.src_rank, move.dst_rank, sums, packed(mine)))


def _layers(departure: Departure, layers: int, gate: LayerGate | None) -> Iterator[tuple[int, int]]:
    """First layer and end of each batch; waits for the gate."""
    if gate is None:
        yield 0, layers
        return
    sent = 0
    while sent < layers:
        computed = departure.until("further layer", partial(gate.beyond, sent))
        gate.settle(computed)
        end = min(computed, layers)
        yield sent, end
        sent = end


def _end(pieces: Pieces, layers: int) -> int:
    return int(pieces.layer_ends[layers - 1]) if layers else 0


def _checksums(own: Own, move: Move) -> bytes:
    """Of some pages of the destination at a time, as many as the cache holds."""
    page, first = move.dst.page_size, move.dst_at.first
    step = page * max(1, BUFFER_BYTES * move.tokens // (move.wire_bytes * page))
    starts = [0, *range(step - first % page, move.tokens, step)]
    sums = []
    for start, end in itertools.pairwise([*starts, move.tokens]):
        at = Place(move.src_at.pages, move.src_at.first + start)
        staged = gather(own.pools[move.src_rank], at, end - start, heads=move.heads)
        own.synchronise()
        sums.append(page_checksums(staged, first + start, page))
    return b"".join(sums)
