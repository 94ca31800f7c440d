"""The memory that a session's moves read and write: touched, so that no move pays for pages coming to be."""

import os
import re
from collections.abc import Callable
from multiprocessing import shared_memory

import numpy as np

from kvferry.integrations.transports.base import Region
from kvferry.integrations.transports.errors import Missing, Refused

__all__ = ["Memory"]

CUDA = re.compile(r"cuda(?::(\d+))?")


class Memory:
    """`nbytes` bytes on `device`, "cpu" or "cuda:N"; `shared` with other processes of this host.

    Raises `Refused` for another device and where there is not so much, `Missing` for CUDA without torch.
    """

    def __init__(self, nbytes: int, device: str = "cpu", *, shared: bool = False) -> None:
        self.nbytes = nbytes
        self.region: Region
        self._free: Callable[[], None] = lambda: None
        self._kept: object = None
        try:
            if (found := CUDA.fullmatch(device)) is not None:
                self._on_cuda(int(found[1] or 0))
            elif device != "cpu":
                raise Refused(f"no device {device!r}: there are cpu and cuda:N")
            elif shared:
                self._in_shared_memory()
            else:
                # Random bytes: what a wire or a file system might compress is not what caches hold.
                array = np.frombuffer(np.random.default_rng(0).bytes(min(nbytes, 2**20)), np.uint8)
                self._keep(np.resize(array, nbytes))
        except MemoryError as error:
            raise Refused(f"this machine has no {nbytes} bytes left") from error

    def close(self) -> None:
        """Give it back; nothing may write to it any more."""
        self._kept = None
        self._free()
        self._free = lambda: None

    def _keep(self, array: np.ndarray) -> None:
        self._kept = array
        self.region = Region(array.ctypes.data, self.nbytes)

    def _in_shared_memory(self) -> None:
        shared = shared_memory.SharedMemory(create=True, size=self.nbytes)

        def free() -> None:
            shared.close()
            shared.unlink()

        try:
            with open(f"/dev/shm/{shared.name}", "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, self.nbytes)  # a full tmpfs would end this process
            assert shared.buf is not None
            self._keep(np.frombuffer(shared.buf, np.uint8))
        except OSError as error:
            free()
            raise Refused(f"no {self.nbytes} bytes of shared memory: {error}") from error
        self._free = free

    def _on_cuda(self, device: int) -> None:
        try:
            import torch
        except ImportError as error:
            raise Missing("memory on CUDA needs torch: pip install 'kvferry[transports]'") from error
        try:
            tensor = torch.zeros(self.nbytes, dtype=torch.uint8, device=f"cuda:{device}")
            torch.cuda.synchronize(device)
        except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
            raise Refused(f"no {self.nbytes} bytes on cuda:{device}: {error}") from error
        self._kept = tensor
        self.region = Region(tensor.data_ptr(), self.nbytes, "cuda", device)
