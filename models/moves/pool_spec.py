"""One rank's KV pool: what is registered, and where in it each token's bytes are."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kvferry.policy.kvshape import KVShape, element_bytes
from kvferry.policy.layout import KVLayout, LayoutOrder

Ints = npt.NDArray[np.int64]
Index = TypeVar("Index", int, Ints)

_SAME_DTYPE = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp8": "fp8_e4m3",
    "fp8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}


def canonical_dtype(dtype: str) -> str:
    """One name for each KV dtype: float32, bfloat16, float16, fp8_e4m3, fp8_e5m2, int8, ...

    ValueError for an unknown one.
    """
    name = dtype.lower().removeprefix("torch.")
    name = _SAME_DTYPE.get(name, name)
    element_bytes(name)
    return name


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One rank's pool. Heads `first_head` to `first_head + heads - 1` of the model are in it.

    Regions, in the order in which they are registered:
    layer_first: region 2 * layer + kv (kv 0 = K, 1 = V) is [pages, page_size, heads, head_dim];
    page_first: one region, [pages, layers, 2, page_size, heads, head_dim].
    ValueError where a count is below 1, or the dtype is unknown or has no whole bytes per element.
    `dtype` is kept under its canonical name.
    """

    layers: int
    heads: int
    head_dim: int
    pages: int
    page_size: int
    dtype: str
    order: LayoutOrder = LayoutOrder.LAYER_FIRST
    first_head: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "head_dim", "pages", "page_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"KV pool: {name} is {getattr(self, name)}, must be at least 1")
        if self.first_head < 0:
            raise ValueError(f"KV pool: first_head is {self.first_head}, must not be negative")
        object.__setattr__(self, "dtype", canonical_dtype(self.dtype))
        object.__setattr__(self, "order", LayoutOrder(self.order))
        if not float(element_bytes(self.dtype)).is_integer():
            raise ValueError(f"KV pool: dtype {self.dtype} does not take whole bytes per element")

    @property
    def element_bytes(self) -> int:
        return int(element_bytes(self.dtype))

    @property
    def head_bytes(self) -> int:
        """One head of one token, in one layer, K or V."""
        return self.head_dim * self.element_bytes

    @property
    def token_bytes(self) -> int:
        """All heads of one token, in one layer, K or V."""
        return self.heads * self.head_bytes

    @property
    def block_bytes(self) -> int:
        """One page of one layer, K or V."""
        return self.page_size * self.token_bytes

    @property
    def page_bytes(self) -> int:
        """One page: all layers, K and V."""
        return 2 * self.layers * self.block_bytes

    @property
    def region_bytes(self) -> tuple[int, ...]:
        if self.order is LayoutOrder.PAGE_FIRST:
            return (self.pages * self.page_bytes,)
        return (self.pages * self.block_bytes,) * (2 * self.layers)

    @property
    def page_stride(self) -> int:
        """Bytes from one page to the next within a region."""
        return self.page_bytes if self.order is LayoutOrder.PAGE_FIRST else self.block_bytes

    def region(self, layer: Index, kv: Index) -> Index:
        """Index of the region that holds layer `layer`, K (0) or V (1)."""
        return 0 * (layer + kv) if self.order is LayoutOrder.PAGE_FIRST else 2 * layer + kv

    def offset(self, page: Index, layer: Index, kv: Index, token: Index, head: Index) -> Index:
        """Byte offset within `region(layer, kv)` of one token of a page and one of this rank's heads.

        Every index is 0-based and unchecked; `head` counts from `first_head`. Takes ints or arrays.
        """
        inside = token * self.token_bytes + head * self.head_bytes
        if self.order is LayoutOrder.PAGE_FIRST:
            inside = inside + (2 * layer + kv) * self.block_bytes
        return page * self.page_stride + inside


def ranks_of(shape: KVShape, layout: KVLayout, pages: int) -> tuple[PoolSpec, ...]:
    """The pools of a worker's attention TP ranks, heads given out as SGLang does.

    With as many KV heads as ranks or more, every rank has kv_heads / tp consecutive ones; with fewer,
    heads are replicated and rank r has head r * kv_heads // tp. ValueError under MLA (its one latent has
    no V), for window layers or a fixed state (pools of other sizes), and where neither number divides
    the other.
    """
    if shape.mla or layout.mla:
        raise ValueError("KV pools of MLA models are not modelled: a latent has no heads and no V")
    if shape.window_layers or shape.fixed_bytes:
        raise ValueError("KV pools of hybrid models are not modelled: their layers differ in size")
    heads, tp = shape.kv_heads, layout.tp
    if tp < 1 or max(heads, tp) % min(heads, tp):
        raise ValueError(f"{heads} KV heads do not divide over TP {tp}")
    each = max(1, heads // tp)
    return tuple(
        PoolSpec(
            shape.layers,
            each,
            shape.head_dim,
            pages,
            layout.page_size,
            layout.dtype,
            layout.order,
            first_head=rank * heads // tp,
        )
        for rank in range(tp)
    )
