"""What registering memory with a transport costs."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from kvferry.integrations.transports.base import Region, Transport
from kvferry.models.paths.nonnegative import least_deviations

__all__ = ["line", "timed", "trials"]

SIZES = (2**20, 2**23, 2**26)
# Trials may take this share of the memory: what they touch is touched before the session's own moves.
SHARE = 0.5


def trials(opened: Callable[[], Transport], region: Region) -> list[tuple[int, float]]:
    """(bytes, seconds) of registering a few sizes, each a part of its own of `region` with a transport of
    its own: nobody has seen that memory before."""
    found, at = [], region.address
    for nbytes in SIZES:
        if at + nbytes > region.address + int(SHARE * region.nbytes):
            break
        transport = opened()
        try:
            found.append((nbytes, timed(transport, Region(at, nbytes, region.kind, region.device))[1]))
        finally:
            transport.close()
        at += nbytes
    return found


def timed(transport: Transport, region: Region) -> tuple[bytes, float]:
    """The transport's metadata and the seconds that registering took."""
    began_s = time.monotonic()
    metadata = transport.register((region,))
    return metadata, time.monotonic() - began_s


def line(found: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(s, s/byte) of seconds = s + bytes * s/byte, neither negative, by the least sum of relative errors."""
    sizes = np.array([nbytes for nbytes, _ in found], dtype=np.float64)
    took = np.maximum([seconds for _, seconds in found], 1e-9)
    columns = np.stack([np.ones(sizes.size), sizes], axis=1) / took[:, None]
    constant_s, s_per_byte = least_deviations(columns, np.ones(sizes.size)).tolist()
    return constant_s, s_per_byte
