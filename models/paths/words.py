"""Numbers of a path in the words of a verdict."""

import math

_BELOW = {
    3 / 4: "three quarters",
    2 / 3: "two thirds",
    1 / 2: "half",
    1 / 3: "a third",
    1 / 4: "a quarter",
    1 / 5: "a fifth",
    1 / 6: "a sixth",
    1 / 7: "a seventh",
    1 / 8: "an eighth",
    1 / 9: "a ninth",
    1 / 10: "a tenth",
}
SAME = 0.1
KIB = 1024.0
KIND_WORDS = {
    "nvlink": "nvlink",
    "rdma_gpudirect": "rdma with GPUDirect",
    "rdma_host": "host staging",
    "pcie": "pcie",
    "tcp": "tcp",
    "shared_memory": "shared memory",
}


def share(ratio: float) -> str:
    """A bandwidth over another one: "an eighth of", "1/40 of", "1.6 times", "the rate of" within
    a tenth."""
    if abs(ratio - 1.0) <= SAME:
        return "the rate of"
    if ratio > 1.0:
        return f"{ratio:.1f} times"
    if ratio > 0.82:
        return f"{ratio:.0%} of"
    if 1.0 / ratio >= 10.5:
        return f"1/{1.0 / ratio:.0f} of"
    return f"{_BELOW[min(_BELOW, key=lambda known: abs(math.log(ratio / known)))]} of"


def percent(ratio: float) -> str:
    """A ratio as a percentage, two digits of it below 10%."""
    return f"{100.0 * ratio:.2g}%" if ratio < 0.095 else f"{ratio:.0%}"


def gb_s(bytes_per_s: float) -> str:
    """A bandwidth in GB/s (1e9 bytes), two digits of it."""
    return f"{bytes_per_s / 1e9:.2g} GB/s" if bytes_per_s < 99e9 else f"{bytes_per_s / 1e9:.0f} GB/s"


def gb_s_range(low_bytes_per_s: float, high_bytes_per_s: float) -> str:
    """A class's bandwidths: "0.5 to 10 GB/s"."""
    return f"{gb_s(low_bytes_per_s).removesuffix(' GB/s')} to {gb_s(high_bytes_per_s)}"


def size(count: float) -> str:
    """Bytes in KiB, MiB or GiB, two digits of them."""
    for unit in ("KiB", "MiB"):
        count /= KIB
        if count < KIB - 0.5:
            return f"{count:.2g} {unit}" if count < 99.5 else f"{count:.0f} {unit}"
    return f"{count / KIB:.2g} GiB"


def us(seconds: float) -> str:
    """Microseconds, two digits of them."""
    return f"{seconds * 1e6:.2g} us" if seconds < 99e-6 else f"{seconds * 1e6:.0f} us"
