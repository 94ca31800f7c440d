"""What to look at on the hosts when a path is not what it claims to be."""

from collections.abc import Sequence

from kvferry.models.paths.curve import Curve
from kvferry.models.paths.looks import crosses_hosts
from kvferry.policy.link import PathClass

# What of a path can fall short.
RATE, START, PIECES = "rate", "start", "pieces"

LINE = "the negotiated line rate (ibstat, ethtool)"
PCIE = "the NIC's PCIe width and generation (lspci -vv, LnkSta)"
NUMA = "that GPU and NIC share a switch or NUMA node (nvidia-smi topo -m)"
PEER = "that nvidia-peermem or dma-buf is loaded and PCIe ACS is off"
RDMA = "that the transport uses RDMA devices (Mooncake's device name; UCX_TLS and UCX_NET_DEVICES)"
NVLINK = "that NVLink is up (nvidia-smi nvlink -s) and peers can access each other (nvidia-smi topo -p2p r)"
P2P = "peer access over PCIe (nvidia-smi topo -p2p r; IOMMU and ACS)"
CMA = "that UCX_TLS has cma and ptrace is allowed (kernel.yama.ptrace_scope)"
TOUCH = "that the pools are touched before the first move"
COPIES = "whether one core is busy with copying"
STREAMS = f"MTU and streams per peer and {COPIES}"
SHAPER = "for a shaper or a rate limit: the first bytes go faster than the rest"
FEW_PIECES = (
    "for busy cores: each piece is the transport's own work, so layouts of few large pieces (larger pages,"
    " the same TP on both sides) move faster"
)
CROSSES = "that the bytes cross this path and not another device or this host's memory"
BUSY = "that nothing else runs on the hosts and the path"

# A shaper lets its burst through so many times faster than what follows.
SHAPED = 3.0
_SLOW = {
    "nvlink": (NVLINK, NUMA),
    "rdma_gpudirect": (LINE, PCIE, NUMA),
    "rdma_host": (LINE, PCIE, NUMA),
    "pcie": (P2P, PCIE, NUMA),
    "tcp": (LINE, STREAMS, NUMA),
    "shared_memory": (TOUCH, CMA),
}
_BOUNCED = {"nvlink": (NVLINK, P2P), "rdma_gpudirect": (PEER, NUMA), "pcie": (P2P, NUMA)}
_OVER_TCP = {
    "nvlink": (NVLINK,),
    "rdma_gpudirect": (RDMA, PEER),
    "rdma_host": (RDMA,),
    "shared_memory": (CMA,),
}


def checks(
    curve: Curve,
    claimed: PathClass,
    looks: Sequence[str],
    short: Sequence[str],
    *,
    astray: bool,
) -> tuple[str, ...]:
    """The likeliest first. `looks`: kinds that the path looks like; `short`: which of RATE, START and PIECES
    fall short; `astray`: faster than the class can be, as something else is."""
    found = [CROSSES] if astray else []
    slow = RATE in short
    if slow and curve.two_regimes and curve.first_beta_bytes_per_s > SHAPED * curve.beta_bytes_per_s:
        found.append(SHAPER)
    loopback = claimed.kind == "tcp" and not crosses_hosts(claimed)
    its_own = (COPIES, TOUCH) if loopback else _SLOW.get(claimed.kind, (BUSY,))
    for kind in looks if slow else ():
        if kind == claimed.kind:
            found += its_own
        elif kind == "tcp":
            found += _OVER_TCP.get(claimed.kind, ())
        elif kind in ("rdma_host", "pcie"):
            found += _BOUNCED.get(claimed.kind, ())
    if slow:
        found += its_own
    if PIECES in short:
        found.append(FEW_PIECES)
    if slow or START in short:
        found.append(BUSY)
    return tuple(dict.fromkeys(found))
