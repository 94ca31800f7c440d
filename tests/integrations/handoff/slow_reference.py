"""Slow and obviously right: what the pools of a worker hold, one token at a time.

`kv` is always the whole model's, bytes [layer, K/V, token, head, bytes of a head].
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash

from kvferry.integrations.transports.kernels.tensors import DTYPES
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec
from kvferry.policy.layout import LayoutOrder

ALIGNED = 64


def worker_bytes(specs: tuple[PoolSpec, ...]) -> int:
    return sum(-(-sum(spec.region_bytes) // ALIGNED) * ALIGNED for spec in specs)


@dataclass
class Worker:
    """All ranks of a worker, one pool after the other in `memory` (a uint8 array)."""

    specs: tuple[PoolSpec, ...]
    memory: Any

    def rank(self, index: int) -> Any:
        """A rank's bytes, region after region."""
        first = worker_bytes(self.specs[:index])
        return self.memory[first : first + sum(self.specs[index].region_bytes)]

    def pool(self, index: int) -> KVPool:
        spec, bytes_of_rank = self.specs[index], torch.from_numpy(self.rank(index))
        shape: tuple[int, ...] = (spec.pages, spec.page_size, spec.heads, spec.head_dim)
        if spec.order is LayoutOrder.PAGE_FIRST:
            shape = (spec.pages, spec.layers, 2, *shape[1:])
        tensors = [
            part.view(DTYPES[spec.dtype]).view(shape) for part in bytes_of_rank.split(spec.region_bytes[0])
        ]
        return KVPool(spec, tensors=tensors)

    def held(self, index: int) -> Any:
        """The rank's bytes as [layer, K/V, page, token, head, bytes of a head], a view."""
        spec = self.specs[index]
        inner = (spec.page_size, spec.heads, spec.head_bytes)
        if spec.order is LayoutOrder.PAGE_FIRST:
            return self.rank(index).reshape(spec.pages, spec.layers, 2, *inner).transpose(1, 2, 0, 3, 4, 5)
        return self.rank(index).reshape(spec.layers, 2, spec.pages, *inner)

    def put(self, at: Place, kv: Any) -> None:
        for index, spec in enumerate(self.specs):
            held = self.held(index)
            for token in range(kv.shape[2]):
                page, slot = divmod(at.first + token, spec.page_size)
                held[:, :, at.pages[page], slot] = kv[
                    :, :, token, spec.first_head : spec.first_head + spec.heads
                ]

    def take(self, index: int, at: Place, tokens: int) -> Any:
        """What rank `index` has of the tokens, [layer, K/V, token, head of the rank, bytes of a head]."""
        spec, held = self.specs[index], self.held(index)
        places = [divmod(at.first + token, spec.page_size) for token in range(tokens)]
        return np.stack([held[:, :, at.pages[page], slot] for page, slot in places], axis=2)

    def digests(self) -> list[list[int]]:
        """xxh3 of every page of every rank, all layers of it."""
        pages = []
        for index, spec in enumerate(self.specs):
            held = np.ascontiguousarray(self.held(index).transpose(2, 0, 1, 3, 4, 5))
            pages.append([xxhash.xxh3_64_intdigest(held[page].data) for page in range(spec.pages)])
        return pages


def values(kv: Any, dtype: str) -> torch.Tensor:
    """The numbers that the bytes are, float32 [layer, K/V, token, head, head_dim]."""
    return torch.from_numpy(np.ascontiguousarray(kv)).view(DTYPES[dtype]).float()


def as_bytes(numbers: torch.Tensor, dtype: str) -> Any:
    """The numbers' bytes in `dtype`, rounded to nearest."""
    return numbers.to(DTYPES[dtype]).contiguous().view(torch.uint8).numpy()


def normal(shape: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    """Normal values [layer, K/V, token, head, head_dim], each head of another size."""
    sizes = 10.0 ** rng.uniform(-2, 2, (shape[0], 2, 1, shape[3], 1)).astype(np.float32)
    return torch.from_numpy(rng.standard_normal(shape, np.float32) * sizes).clamp_(-400, 400)


def fp8_error(x: torch.Tensor, scales: torch.Tensor, dtype: str) -> torch.Tensor:
    """The format's largest error of each value: half a step of 3 or 2 mantissa bits, or of the least
    subnormal. `scales` [layer, K/V, head]."""
    relative, least = (1 / 16, 2.0**-10) if dtype == "fp8_e4m3" else (1 / 8, 2.0**-17)
    return torch.maximum(x.abs() * relative, least * scales[:, :, None, :, None])
