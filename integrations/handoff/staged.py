"""A move in parts that are gathered here, travel in one write each, and are scattered there.

While part k is on the wire part k + 1 is gathered and part k - 1 is scattered, so a move goes in several
parts even where one slot would hold all of it. Measured with 64 MiB of bf16 to fp8 between two processes on
two cores that others kept busy too, least of 12: in 1, 2, 4 and 8 parts 141, 110, 127 and 121 ms over
Mooncake (TCP), 64, 65, 68 and 107 over NIXL (CMA). What runs at the same time gains nothing where no core is
free; 8 parts cost more than they can gain.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from kvferry.integrations.handoff.checksums import page_checksums
from kvferry.integrations.handoff.departure import Departure
from kvferry.integrations.handoff.gate import LayerGate
from kvferry.integrations.handoff.messages import Staged, Want
from kvferry.integrations.handoff.own import Own
from kvferry.integrations.handoff.scales import Scales, packed, part_of
from kvferry.integrations.transports.base import Batch
from kvferry.integrations.transports.kernels.convert import convert
from kvferry.integrations.transports.kernels.staged import gather
from kvferry.integrations.transports.kernels.tensors import DTYPES, torch
from kvferry.models.moves.plan import Move

__all__ = ["layers_each", "send_staged"]

PARTS = 4
# What a part costs beyond its bytes is what copying some hundred KiB takes.
LEAST_PART_BYTES = 1 << 20
# As many layers at a time as the cache holds: converting all at once pays for new memory.
BUFFER_BYTES = 4 << 20


def layers_each(moves: Sequence[Move], slot_bytes: int, parts: int = PARTS) -> int:
    """Layers that one part carries: `parts` parts for all moves, but each of at least 1 MiB and at most a
    slot. 0 where a slot holds no whole layer."""
    layers = moves[0].src.layers
    layer_bytes = max(move.wire_bytes for move in moves) // layers
    fits = min(layers, slot_bytes // layer_bytes)
    spread = -(-layers * len(moves) // parts)
    return min(fits, max(1, spread, -(-LEAST_PART_BYTES // layer_bytes)))


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    move: Move
    layers: range
    ticket: int

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        move = self.move
        return len(self.layers), 2, move.tokens, len(move.heads), move.src.head_dim

    @property
    def nbytes(self) -> int:
        return self.move.wire_bytes // self.move.src.layers * len(self.layers)


def send_staged(
    departure: Departure,
    own: Own,
    moves: Sequence[Move],
    each: int,
    scales: Scales,
    wanted: Scales,
    verify: bool,
    gate: LayerGate | None = None,
) -> None:
    """All moves, `each` layers at a time; `wanted` are the scales that a destination rank's fp8 values must
    be in. With a gate a part is gathered once its layers are computed."""
    worker = _Worker(departure, own, scales, wanted, verify)
    own.slots.watch(departure.wake)
    # One write at a time: the transport's own line is shared with other moves.
    with ThreadPoolExecutor(1, f"kvferry-write-{departure.peering.name}") as writer:
        try:
            writes = []
            for part in _parts(moves, each):
                if gate is not None:
                    departure.until("further layer", partial(gate.beyond, part.layers.stop - 1))
                    gate.settle(part.layers.stop)
                slot = departure.until("free staging slot", own.slots.take)
                try:
                    departure.say(Want(departure.number, part.ticket))
                    message = worker.fill(part, slot)
                except BaseException:
                    own.slots.give(slot)
                    raise
                writes.append(writer.submit(worker.write, part, slot, message))
            for write in writes:
                write.result()
        finally:
            own.slots.unwatch(departure.wake)


def _parts(moves: Sequence[Move], each: int) -> Iterator[_Part]:
    layers = moves[0].src.layers
    ticket = 0
    for first in range(0, layers, each):
        for move in moves:
            yield _Part(move, range(first, min(first + each, layers)), ticket)
            ticket += 1


class _Worker:
    """Does one departure's parts; `fill` in its thread, `write` in the writer's."""

    def __init__(self, departure: Departure, own: Own, scales: Scales, wanted: Scales, verify: bool) -> None:
        self._departure, self._own, self._verify = departure, own, verify
        self._scales, self._wanted = scales, wanted

    def fill(self, part: _Part, slot: int) -> Staged:
        """Gather and convert into the slot; returns what is to be said when it is at the other side."""
        move = part.move
        began_s = time.monotonic()
        target = self._own.slots.view(slot, part.shape, move.wire_dtype)
        given = part_of(self._scales.get(move.src_rank), move.src, move.heads, part.layers)
        wanted = part_of(self._wanted.get(move.dst_rank), move.dst, move.heads, part.layers)
        convert_s = 0.0
        if move.src.dtype == move.wire_dtype and wanted is None:
            self._gather(move, part.layers, target)
        else:
            given, convert_s = self._convert(part, target, given, wanted)
        filled_s = time.monotonic()
        sums = page_checksums(target, move.dst_at.first, move.dst.page_size) if self._verify else b""
        self._departure.spent(
            gather_s=filled_s - began_s - convert_s,
            convert_s=convert_s,
            verify_s=time.monotonic() - filled_s if self._verify else 0.0,
        )
        return Staged(
            self._departure.number,
            part.ticket,
            move.src_rank,
            move.dst_rank,
            part.layers.start,
            len(part.layers),
            move.wire_dtype,
            sums,
            packed(given),
        )

    def write(self, part: _Part, slot: int, message: Staged) -> None:
        departure, peering = self._departure, self._departure.peering
        try:
            theirs = departure.until(
                "staging slot of the destination", lambda: departure.slots.get(part.ticket)
            )
            ends = np.array(
                [[self._own.slots.address(slot)], [peering.slot_address(theirs)], [part.nbytes]],
                dtype=np.int64,
            )
            departure.carry(Batch(ends[0], ends[1], ends[2]))
        except Exception as error:
            departure.fail_with(error)
            raise
        finally:
            self._own.slots.give(slot)
        departure.say(message)

    def _convert(
        self, part: _Part, target: torch.Tensor, given: torch.Tensor | None, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, float]:
        """Gather and convert into `target`; the scales that its values have, and seconds of converting."""
        move, made, convert_s = part.move, [], 0.0
        step = max(1, BUFFER_BYTES // (move.staging(move.src.dtype).page_bytes // move.src.layers))
        shape = (min(step, len(part.layers)), *part.shape[1:])
        buffer = torch.empty(shape, dtype=DTYPES[move.src.dtype], device=target.device)
        for start in range(0, len(part.layers), step):
            some = slice(start, min(start + step, len(part.layers)))
            layers = part.layers[some]
            values = buffer[: len(layers)]
            self._gather(move, layers, values)
            gathered_s = time.monotonic()
            scales = None if given is None else given[some]
            _, scales = convert(
                values, move.wire_dtype, scales, None if wanted is None else wanted[some], out=target[some]
            )
            self._own.synchronise()
            convert_s += time.monotonic() - gathered_s
            if scales is not None:
                made.append(scales)
        return torch.cat(made) if made else None, convert_s

    def _gather(self, move: Move, layers: range, out: torch.Tensor) -> None:
        pool = self._own.pools[move.src_rank]
        gather(pool, move.src_at, move.tokens, layers=layers, heads=move.heads, out=out)
        self._own.synchronise()
