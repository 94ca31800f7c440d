"""KV from one worker's pools into another's of any other layout, within one process."""

from collections.abc import Iterator, Sequence

from kvferry.integrations.transports.kernels.convert import convert
from kvferry.integrations.transports.kernels.fp8 import FP8
from kvferry.integrations.transports.kernels.staged import gather, scatter
from kvferry.integrations.transports.kernels.tensors import torch
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.place import Place
from kvferry.models.moves.plan import Move, plan
from kvferry.models.moves.pool_spec import PoolSpec

Scales = torch.Tensor | None
_BUFFER_BYTES = 4 << 20


def repack(
    src: Sequence[KVPool],
    src_at: Place,
    dst: Sequence[KVPool],
    dst_at: Place,
    tokens: int,
    src_scales: Sequence[Scales] | None = None,
    dst_scales: Sequence[Scales] | None = None,
) -> tuple[Scales, ...]:
    """Copy `tokens` tokens between all ranks of two workers; the scales of each destination rank.

    Scales are float32 [layer, K/V, head of the rank], one tensor a rank, for fp8 pools: `src_scales` are 1
    where not given, `dst_scales` are then made from the values (see `convert`); None for other dtypes.
    `Impossible` where the layouts or places allow no move, ValueError as `convert` raises it.
    """
    moves = plan([pool.spec for pool in src], src_at, [pool.spec for pool in dst], dst_at, tokens)
    made = tuple(_ones(pool) if pool.spec.dtype in FP8 else None for pool in dst)
    for move in moves:
        source, target = src[move.src_rank], dst[move.dst_rank]
        result = made[move.dst_rank]
        buffer = None
        for layers in _layers(move):
            buffer = None if buffer is None else buffer[: len(layers)]
            buffer = gather(source, src_at, tokens, layers=layers, heads=move.heads, out=buffer)
            staged, scales = convert(
                buffer,
                move.dst.dtype,
                _of(src_scales, move.src_rank, move.src, move.heads, layers),
                _of(dst_scales, move.dst_rank, move.dst, move.heads, layers),
            )
            scatter(staged, target, dst_at, layers=layers, heads=move.heads)
            if result is not None and scales is not None:
                _part(result, move.dst, move.heads, layers).copy_(scales)
    return made


def _ones(pool: KVPool) -> torch.Tensor:
    return torch.ones(pool.spec.layers, 2, pool.spec.heads, device=pool.device)


def _layers(move: Move) -> Iterator[range]:
    """As many layers at a time as the cache holds: a buffer for all costs more in new memory than copying."""
    each = move.staging(move.src.dtype).page_bytes // move.src.layers
    step = max(1, _BUFFER_BYTES // each)
    for first in range(0, move.src.layers, step):
        yield range(first, min(first + step, move.src.layers))


def _of(scales: Sequence[Scales] | None, rank: int, spec: PoolSpec, heads: range, layers: range) -> Scales:
    one = scales[rank] if scales else None
    return None if one is None else _part(one, spec, heads, layers)


def _part(scales: torch.Tensor, spec: PoolSpec, heads: range, layers: range) -> torch.Tensor:
    first = heads.start - spec.first_head
    return scales[layers.start : layers.stop, :, first : first + len(heads)]
