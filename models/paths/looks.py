"""Which class of the catalogue a measured path looks like."""

import math
from collections.abc import Iterable, Mapping

from kvferry.models.paths.curve import Curve
from kvferry.policy.link import PathClass

# What the logarithms of the three ratios count; bandwidth within a class's range counts as less off.
IN_RANGE = 0.6
START = 0.3
POSTING = 0.3
# Differences below these are the machine's, not the path's.
SMALL_ALPHA_S = 5e-6
SMALL_GAMMA_S = 0.2e-6
# What a descriptor costs over TCP is the library's, not the network's: up to 25 us with Mooncake (measured,
# `loopback_tcp_mooncake`).
TCP_GAMMA_S = 25e-6
# A class explains a bandwidth down to this share of its lowest, and up to so many times its highest; it is
# named for one only when its typical bandwidth is at most so many times as high.
LEAST_SHARE = 0.5
MOST_TIMES = 1.25
NAMED_TIMES = 2.0
# Kinds with a class whose range holds the bandwidth, or nearly so, go first.
NEARLY = 0.8
ONE_HOST_KINDS = ("nvlink", "pcie", "shared_memory")


def distance(curve: Curve, path: PathClass, units: int = 1) -> float:
    """How far the figures are from those of a class, in weighted logarithms; 0 for its own."""
    own = Curve.of(path, units)
    beta = _per_unit(curve, path, units)
    within = min(max(beta, path.beta_low_bytes_per_s), path.beta_high_bytes_per_s)
    off = _apart(beta, within) + IN_RANGE * _apart(within, path.beta_bytes_per_s)
    start = _apart(curve.alpha_s + SMALL_ALPHA_S, own.alpha_s + SMALL_ALPHA_S)
    gamma_s = own.gamma_s
    if path.kind == "tcp":
        gamma_s = min(max(curve.last_gamma_s, gamma_s), max(gamma_s, TCP_GAMMA_S))
    posting = _apart(curve.last_gamma_s + SMALL_GAMMA_S, gamma_s + SMALL_GAMMA_S)
    return off + START * start + POSTING * posting


def possible(links: Mapping[str, PathClass], same_host: bool | None) -> tuple[PathClass, ...]:
    """Classes that a path can be; None: whether it stays on one host is not known."""
    if same_host is None:
        return tuple(links.values())
    return tuple(path for path in links.values() if same_host or crosses_hosts(path))


def crosses_hosts(path: PathClass) -> bool:
    """False for what is on one host only. NVLink between hosts (MNNVL) and loopback show in their names."""
    if path.name.startswith("loopback"):
        return False
    return path.kind not in ONE_HOST_KINDS or "mnnvl" in path.name


def best(curve: Curve, paths: Iterable[PathClass], units: int = 1) -> PathClass:
    """The nearest class; ValueError without any."""
    return min(paths, key=lambda path: distance(curve, path, units))


def kinds(curve: Curve, paths: Iterable[PathClass], units: int = 1, most: int = 2) -> tuple[str, ...]:
    """Kinds with a class that explains the bandwidth: those whose range holds it first, then the nearest;
    empty where none does."""
    found: dict[str, tuple[bool, float]] = {}
    for path in paths:
        beta = _per_unit(curve, path, units)
        if LEAST_SHARE * path.beta_low_bytes_per_s <= beta <= MOST_TIMES * path.beta_high_bytes_per_s:
            rank = beta < NEARLY * path.beta_low_bytes_per_s, distance(curve, path, units)
            found[path.kind] = min(found.get(path.kind, rank), rank)
    return tuple(sorted(found, key=lambda kind: found[kind])[:most])


def named(curve: Curve, path: PathClass, units: int = 1) -> bool:
    """Whether to say that a path looks like this class: its range nearly holds the bandwidth, and what is
    typical of it is not far above."""
    beta = _per_unit(curve, path, units)
    held = NEARLY * path.beta_low_bytes_per_s <= beta <= MOST_TIMES * path.beta_high_bytes_per_s
    return held and path.beta_bytes_per_s <= NAMED_TIMES * beta


def _per_unit(curve: Curve, path: PathClass, units: int) -> float:
    """Lasting bandwidth of one of the units that a class counts."""
    return curve.beta_bytes_per_s * path.beta_bytes_per_s * Curve.of(path, units).s_per_byte


def _apart(a: float, b: float) -> float:
    return abs(math.log(a / b))
