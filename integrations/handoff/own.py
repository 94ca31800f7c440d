"""This process's end of every move: its pools, and the staging memory that it sends out of."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from kvferry.integrations.handoff.gate import Watched
from kvferry.integrations.transports.base import Region
from kvferry.integrations.transports.kernels.tensors import DTYPES, torch
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.pool_spec import Ints, PoolSpec

__all__ = ["Own", "Slots"]

ALIGNED_BYTES = 64


class Slots(Watched):
    """Staging memory in slots of `slot_bytes` bytes, one for each part of a move that is gathered or on the
    wire; all departures share them."""

    def __init__(self, slots: int, slot_bytes: int, device: torch.device) -> None:
        super().__init__()
        # Slots begin where any dtype may.
        self.slot_bytes = slot_bytes = -(-slot_bytes // ALIGNED_BYTES) * ALIGNED_BYTES
        # Zeros, touched: memory that comes into being under the first move makes it several times as long.
        self._memory = torch.zeros(slots * slot_bytes, dtype=torch.uint8, device=device).fill_(0)
        self._free = list(range(slots))

    @property
    def region(self) -> Region:
        device = self._memory.device
        kind: Literal["cpu", "cuda"] = "cuda" if device.type == "cuda" else "cpu"
        return Region(self._memory.data_ptr(), self._memory.numel(), kind, device.index or 0)

    def take(self) -> int | None:
        """A free slot; None while there is none (`watch` tells when there may be)."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give(self, slot: int) -> None:
        with self._lock:
            self._free.append(slot)
        self._tell()

    def address(self, slot: int) -> int:
        return self._memory.data_ptr() + slot * self.slot_bytes

    def view(self, slot: int, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """The beginning of a slot as KV in staged form."""
        kind = DTYPES[dtype]
        nbytes = int(np.prod(shape)) * kind.itemsize
        first = slot * self.slot_bytes
        return self._memory[first : first + nbytes].view(kind).view(shape)


class Own:
    """`worker`: the pools of all ranks; `pools`: those that this process has, by rank."""

    def __init__(
        self, worker: Sequence[PoolSpec], pools: Mapping[int, KVPool], slots: int, slot_bytes: int
    ) -> None:
        """ValueError where a pool is not what `worker` says, or there is none, or no slot."""
        for rank, pool in pools.items():
            if not 0 <= rank < len(worker) or worker[rank] != pool.spec:
                raise ValueError(
                    f"the pool of rank {rank} is not the one of the worker's {len(worker)} ranks"
                )
        if not pools or slots < 1 or slot_bytes < 1:
            raise ValueError(f"{len(pools)} pools and {slots} slots of {slot_bytes} bytes move nothing")
        self.worker = tuple(worker)
        self.pools = {rank: pools[rank] for rank in sorted(pools)}
        self.device = next(iter(self.pools.values())).device
        self.slots = Slots(slots, slot_bytes, self.device)
        self.bases: dict[int, Ints] = {
            rank: np.array([region.address for region in pool.regions], dtype=np.int64)
            for rank, pool in self.pools.items()
        }

    @property
    def regions(self) -> tuple[Region, ...]:
        """What to register: those of the ranks in their order, then the slots."""
        return (*(region for pool in self.pools.values() for region in pool.regions), self.slots.region)

    def synchronise(self) -> None:
        """Wait until what this thread queued on a CUDA device is in memory: a transport knows no streams."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
