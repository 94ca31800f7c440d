"""One rank's KV pool in memory: tensors that a transport registers and kernels read and write."""

import mmap
from collections.abc import Sequence
from typing import Literal

from kvferry.integrations.transports.base import Region
from kvferry.integrations.transports.kernels.tensors import DTYPES, as_words, torch
from kvferry.models.moves.pool_spec import PoolSpec
from kvferry.policy.layout import LayoutOrder


class KVPool:
    """Memory laid out as `spec` says, one tensor for each of its regions.

    New tensors are zero. Given `tensors` (a worker's own) are used as they are: ValueError where number,
    shape, dtype or device is another, or one is not contiguous. ValueError also for a dtype other than
    float32, bfloat16, float16, fp8_e4m3 and fp8_e5m2.
    """

    __slots__ = ("_words", "device", "spec", "tensors")

    def __init__(
        self, spec: PoolSpec, device: str = "cpu", tensors: Sequence[torch.Tensor] | None = None
    ) -> None:
        if spec.dtype not in DTYPES:
            raise ValueError(f"KV pool: no tensor of {spec.dtype}; can be {', '.join(DTYPES)}")
        shape = _region_shape(spec)
        dtype = DTYPES[spec.dtype]
        if tensors is None:
            tensors = [torch.zeros(shape, dtype=dtype, device=device) for _ in spec.region_bytes]
        if len(tensors) != len(spec.region_bytes):
            raise ValueError(f"KV pool: {len(tensors)} tensors for {len(spec.region_bytes)} regions")
        for index, tensor in enumerate(tensors):
            if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
                raise ValueError(
                    f"KV pool: tensor {index} is {tensor.dtype} {list(tensor.shape)}, "
                    f"must be contiguous {dtype} {list(shape)}"
                )
            if tensor.device != tensors[0].device or tensor.device.type != torch.device(device).type:
                raise ValueError(f"KV pool: tensor {index} is on {tensor.device}, not on {device}")
        self.spec = spec
        self.device = tensors[0].device
        self.tensors = tuple(tensors)
        # Made once: small moves would spend most of their time on making views.
        self._words = tuple(
            (self._block_words(layer, 0), self._block_words(layer, 1)) for layer in range(spec.layers)
        )

    @property
    def regions(self) -> tuple[Region, ...]:
        """What to register, in `spec`'s order."""
        kind: Literal["cpu", "cuda"] = "cuda" if self.device.type == "cuda" else "cpu"
        device = self.device.index or 0
        sizes = self.spec.region_bytes
        return tuple(
            Region(tensor.data_ptr(), nbytes, kind, device)
            for tensor, nbytes in zip(self.tensors, sizes, strict=True)
        )

    def touch(self) -> None:
        """Make the kernel give every page of host memory now; contents stay.

        Before the first move and before anything else writes: pages that come into being under a 64 MiB
        move make it 7 times as long (facts). CUDA memory needs none of this.
        """
        if self.device.type == "cuda":
            return
        for tensor in self.tensors:
            raw = tensor.view(-1).view(torch.uint8)
            raw[:: mmap.PAGESIZE].add_(0)
            raw[-1:].add_(0)

    def blocks(self, layer: int, kv: int) -> torch.Tensor:
        """K (0) or V (1) of a layer, [pages, page_size, heads, head_dim]; a view."""
        if self.spec.order is LayoutOrder.PAGE_FIRST:
            return self.tensors[0][:, layer, kv]
        return self.tensors[self.spec.region(layer, kv)]

    def words(self, layer: int, kv: int, heads: range) -> torch.Tensor:
        """The same of the model's heads `heads` as integers, [pages, page_size, words]; a view."""
        every = self._words[layer][kv]
        if len(heads) == self.spec.heads:
            return every
        each = every.shape[-1] // self.spec.heads
        return every.narrow(-1, (heads.start - self.spec.first_head) * each, len(heads) * each)

    def _block_words(self, layer: int, kv: int) -> torch.Tensor:
        return as_words(self.blocks(layer, kv), self.spec.head_bytes)


def _region_shape(spec: PoolSpec) -> tuple[int, ...]:
    if spec.order is LayoutOrder.PAGE_FIRST:
        return (spec.pages, spec.layers, 2, spec.page_size, spec.heads, spec.head_dim)
    return (spec.pages, spec.page_size, spec.heads, spec.head_dim)
