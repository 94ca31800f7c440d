"""KV from one worker's pools into another's of any other layout, within one process."""

from collections.abc import Sequence

from kvferry.integrations.transports.kernels.convert import convert
from kvferry.integrations.transports.kernels.fp8 import FP8
from kvferry.integrations.transports.kernels.staged import gather, scatter
from kvferry.integrations.transports.kernels.tensors import torch
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.place import Place
from kvferry.models.moves.plan import plan
from kvferry.models.moves.pool_spec import PoolSpec

Scales = torch.Tensor | None


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
        given = _of(src_scales, move.src_rank, move.src, move.heads)
        wanted = _of(dst_scales, move.dst_rank, move.dst, move.heads)
        staged = gather(src[move.src_rank], src_at, tokens, heads=move.heads)
        staged, scales = convert(staged, move.dst.dtype, given, wanted)
        scatter(staged, dst[move.dst_rank], dst_at, heads=move.heads)
        result = made[move.dst_rank]
        if result is not None and scales is not None:
            result[:, :, _local(move.dst, move.heads)] = scales
    return made


def _ones(pool: KVPool) -> torch.Tensor:
    return torch.ones(pool.spec.layers, 2, pool.spec.heads, device=pool.device)


def _of(scales: Sequence[Scales] | None, rank: int, spec: PoolSpec, heads: range) -> Scales:
    one = scales[rank] if scales else None
    return None if one is None else one[:, :, _local(spec, heads)]


def _local(spec: PoolSpec, heads: range) -> slice:
    return slice(heads.start - spec.first_head, heads.stop - spec.first_head)
