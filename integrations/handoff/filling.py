"""Into a staging slot out of the pool: gather, conversion, checksums."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from kvferry.integrations.handoff.checksums import page_checksums
from kvferry.integrations.handoff.departure import Departure
from kvferry.integrations.handoff.messages import Staged
from kvferry.integrations.handoff.own import Own
from kvferry.integrations.handoff.scales import Scales, packed, part_of
from kvferry.integrations.transports.kernels.convert import convert
from kvferry.integrations.transports.kernels.fp8 import FP8, dequantise, magnitudes, scales_for
from kvferry.integrations.transports.kernels.staged import gather
from kvferry.integrations.transports.kernels.tensors import DTYPES, torch
from kvferry.models.moves.place import Place
from kvferry.models.moves.plan import Move
from kvferry.models.moves.portions import Portion

__all__ = ["Filling", "Load"]

# As much at a time as the cache holds: converting all at once pays for new memory.
BUFFER_BYTES = 4 << 20
# Of tokens of one layer: converting 4 MiB of bf16 at a time takes up to four times as long, since the float32
# in between is new memory every time (glibc).
TOKENS_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What one slot carries: a portion of a move."""

    move: Move
    portion: Portion
    ticket: int

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        move, portion = self.move, self.portion
        return len(portion.layers), 2, portion.tokens, len(move.heads), move.src.head_dim

    @property
    def nbytes(self) -> int:
        move, portion = self.move, self.portion
        return move.wire_bytes // (move.src.layers * move.tokens) * len(portion.layers) * portion.tokens


class Filling:
    """Of one departure's slots, in its thread. `wanted` are the scales that a destination rank's fp8 values
    must be in."""

    def __init__(self, departure: Departure, own: Own, scales: Scales, wanted: Scales, verify: bool) -> None:
        self._departure, self._own, self._verify = departure, own, verify
        self._scales, self._wanted = scales, wanted
        self._found: tuple[tuple[int, int, int], torch.Tensor] | None = None

    def fill(self, load: Load, slot: int) -> Staged:
        """Gather and convert into the slot; returns what is to be said when it is at the other side."""
        move, portion = load.move, load.portion
        began_s = time.monotonic()
        target = self._own.slots.view(slot, load.shape, move.wire_dtype)
        given = part_of(self._scales.get(move.src_rank), move.src, move.heads, portion.layers)
        wanted = part_of(self._wanted.get(move.dst_rank), move.dst, move.heads, portion.layers)
        convert_s = 0.0
        if move.src.dtype == move.wire_dtype and wanted is None:
            self._gather(move, portion, target)
        else:
            given, convert_s = self._convert(load, target, given, wanted)
        filled_s = time.monotonic()
        first = move.dst_at.first + portion.first_token
        sums = page_checksums(target, first, move.dst.page_size) if self._verify else b""
        self._departure.spent(
            gather_s=filled_s - began_s - convert_s,
            convert_s=convert_s,
            verify_s=time.monotonic() - filled_s if self._verify else 0.0,
        )
        return Staged(
            self._departure.number,
            load.ticket,
            move.src_rank,
            move.dst_rank,
            portion.layers.start,
            len(portion.layers),
            portion.first_token,
            portion.tokens,
            move.wire_dtype,
            sums,
            packed(given),
        )

    def _convert(
        self, load: Load, target: torch.Tensor, given: torch.Tensor | None, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, float]:
        """Gather and convert into `target`; the scales that its values have, and seconds of converting."""
        move, portion, made, convert_s = load.move, load.portion, [], 0.0
        some = portion.tokens < move.tokens
        if some and wanted is None and move.wire_dtype in FP8:
            began_s = time.monotonic()
            wanted = self._of_all_tokens(move, portion.layers, given)
            convert_s = time.monotonic() - began_s
        for layers, tokens, values in self._blocks(move, portion):
            gathered_s = time.monotonic()
            _, scales = convert(
                values,
                move.wire_dtype,
                None if given is None else given[layers],
                None if wanted is None else wanted[layers],
                out=target[layers, :, tokens],
            )
            self._own.synchronise()
            convert_s += time.monotonic() - gathered_s
            if scales is not None:
                made.append(scales)
        if not made:
            return None, convert_s
        return wanted if some else torch.cat(made), convert_s

    def _of_all_tokens(self, move: Move, layers: range, given: torch.Tensor | None) -> torch.Tensor:
        """The scales that one layer's values get where all its tokens are converted at once: a pass over
        them that reads only, for the first of the layer's portions."""
        key = move.src_rank, move.dst_rank, layers.start
        if self._found is None or self._found[0] != key:
            largest = torch.zeros(1, 2, len(move.heads), device=self._own.device)
            for _, _, values in self._blocks(move, Portion(layers, 0, move.tokens), by_tokens=True):
                wide = dequantise(values, "float32", given) if move.src.dtype in FP8 else values
                largest = torch.maximum(largest, magnitudes(wide))
            self._found = key, scales_for(largest, move.wire_dtype)
        return self._found[1]

    def _blocks(
        self, move: Move, portion: Portion, by_tokens: bool | None = None
    ) -> Iterator[tuple[slice, slice, torch.Tensor]]:
        """A portion's layers and tokens, counted from its own, some at a time, gathered."""
        layers, tokens = len(portion.layers), portion.tokens
        token_bytes = move.staging(move.src.dtype).page_bytes // (move.src.layers * move.tokens)
        if tokens < move.tokens if by_tokens is None else by_tokens:
            steps = 1, min(max(1, TOKENS_BYTES // token_bytes), tokens)
        else:
            steps = min(max(1, BUFFER_BYTES // (token_bytes * tokens)), layers), tokens
        outer = steps[0], 2, steps[1], len(move.heads), move.src.head_dim
        buffer = torch.empty(outer, dtype=DTYPES[move.src.dtype], device=self._own.device).flatten()
        for layer in range(0, layers, steps[0]):
            for token in range(0, tokens, steps[1]):
                size = min(steps[0], layers - layer), min(steps[1], tokens - token)
                shape = size[0], 2, size[1], *outer[3:]
                values = buffer[: torch.Size(shape).numel()].view(shape)
                first = portion.layers.start + layer
                block = Portion(range(first, first + size[0]), portion.first_token + token, size[1])
                self._gather(move, block, values)
                yield slice(layer, layer + size[0]), slice(token, token + size[1]), values

    def _gather(self, move: Move, portion: Portion, out: torch.Tensor) -> None:
        pool = self._own.pools[move.src_rank]
        at = Place(move.src_at.pages, move.src_at.first + portion.first_token)
        gather(pool, at, portion.tokens, layers=portion.layers, heads=move.heads, out=out)
        self._own.synchronise()
