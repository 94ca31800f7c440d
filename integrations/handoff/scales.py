"""Scales of fp8 pools: float32 [layer, K/V, head of the rank], by rank, and as bytes in messages."""

from collections.abc import Mapping

import numpy as np

from kvferry.integrations.transports.errors import Refused
from kvferry.integrations.transports.kernels.tensors import torch
from kvferry.models.moves.pool_spec import PoolSpec

__all__ = ["Scales", "packed", "part_of", "unpacked"]

Scales = Mapping[int, torch.Tensor]


def part_of(
    scales: torch.Tensor | None, pool: PoolSpec, heads: range, layers: range | None = None
) -> torch.Tensor | None:
    """Those of the model's heads `heads` and of `layers` (all where not given), of a rank's."""
    if scales is None:
        return None
    first = heads.start - pool.first_head
    rows = slice(None) if layers is None else slice(layers.start, layers.stop)
    return scales[rows, :, first : first + len(heads)].contiguous()


def packed(scales: torch.Tensor | None) -> bytes:
    """For a message; empty where there are none."""
    return b"" if scales is None else scales.to(torch.float32).cpu().numpy().tobytes()


def unpacked(told: bytes, layers: int, heads: int, device: torch.device) -> torch.Tensor | None:
    """Back from a message, None where it is empty; `Refused` where it has another length."""
    if not told:
        return None
    if len(told) != 4 * layers * 2 * heads:
        raise Refused(f"{len(told)} bytes of scales for {layers} layers of {heads} heads")
    values = np.frombuffer(told, np.float32).reshape(layers, 2, heads).copy()
    return torch.from_numpy(values).to(device)
