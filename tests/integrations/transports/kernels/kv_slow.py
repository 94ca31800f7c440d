"""Slow and obviously right: one head of one token at a time."""

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec
from kvferry.policy.layout import LayoutOrder

# A slow reference takes 10 ms a call, Triton's interpreter 50.
FEW = settings(max_examples=30, deadline=None)
DTYPES = ("float32", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2")


def head_of(pool: KVPool, at: Place, token: int, layer: int, kv: int, head: int) -> torch.Tensor:
    """The elements of one of the model's heads of the selection's token, a view."""
    page_index, slot = divmod(at.first + token, pool.spec.page_size)
    page, local = int(at.pages[page_index]), head - pool.spec.first_head
    if pool.spec.order is LayoutOrder.LAYER_FIRST:
        return pool.tensors[2 * layer + kv][page, slot, local]
    return pool.tensors[0][page, layer, kv, slot, local]


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def memory(pool: KVPool) -> list[bytes]:
    return [raw(tensor) for tensor in pool.tensors]


def filled(spec: PoolSpec, seed: int) -> KVPool:
    """A pool of random bytes, whatever floats they are."""
    pool, rng = KVPool(spec), np.random.default_rng(seed)
    for tensor in pool.tensors:
        noise = torch.from_numpy(rng.integers(0, 256, tensor.nbytes, dtype=np.uint8))
        tensor.view(-1).view(torch.uint8).copy_(noise)
    return pool


def normal(spec: PoolSpec, seed: int) -> KVPool:
    """A pool of normal values, each head of another size."""
    pool, rng = KVPool(spec), np.random.default_rng(seed)
    for tensor in pool.tensors:
        sizes = 10.0 ** rng.uniform(-2, 2, (spec.heads, 1))
        values = rng.normal(size=tuple(tensor.shape)) * sizes
        tensor.copy_(torch.from_numpy(values).float().clamp_(-400, 400))
    return pool


@st.composite
def specs(draw: st.DrawFn, **fixed: object) -> PoolSpec:
    free = {
        "layers": st.integers(1, 3),
        "heads": st.integers(1, 4),
        "head_dim": st.sampled_from((1, 2, 3, 4, 6, 8, 16)),
        "pages": st.integers(1, 6),
        "page_size": st.integers(1, 5),
        "dtype": st.sampled_from(DTYPES),
        "order": st.sampled_from(LayoutOrder),
        "first_head": st.integers(0, 3),
    }
    return PoolSpec(**{name: fixed.get(name, draw(value)) for name, value in free.items()})


@st.composite
def places(draw: st.DrawFn, spec: PoolSpec, tokens: int | None = None) -> tuple[Place, int]:
    """Pages in any order, a first token anywhere, tokens to anywhere."""
    pages = draw(st.permutations(range(spec.pages)))
    held = spec.pages * spec.page_size
    if tokens is None:
        first = draw(st.integers(0, held - 1))
        return Place.of(pages, first), draw(st.integers(1, held - first))
    return Place.of(pages, draw(st.integers(0, held - tokens))), tokens


@st.composite
def ranges(draw: st.DrawFn, start: int, count: int) -> range:
    first = draw(st.integers(0, count - 1))
    return range(start + first, start + draw(st.integers(first + 1, count)))
