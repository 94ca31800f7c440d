"""Which class of the catalogue a measured path looks like."""

import math
from collections.abc import Iterable, Mapping

from kvferry.models.paths.curve import Curve
from kvferry.policy.link import PathClass

# What the logarithms of the three ratios count; bandwidth within a class's range is hardly off.
IN_RANGE = 0.2
START = 0.3
POSTING = 0.3
# Differences below these are the machine's, not the path's.
SMALL_ALPHA_S = 5e-6
SMALL_GAMMA_S = 0.2e-6
# A class explains a bandwidth down to this share of its lowest, and up to so many times its highest.
LEAST_SHARE = 0.5
MOST_TIMES = 1.25
ONE_HOST_KINDS = ("nvlink", "pcie", "shared_memory")


def distance(curve: Curve, path: PathClass, units: int = 1) -> float:
    """How far the figures are from those of a class, in weighted logarithms; 0 for its own."""
    own = Curve.of(path, units)
    lanes = path.beta_bytes_per_s * own.s_per_byte
    beta = curve.beta_bytes_per_s * lanes
    within = min(max(beta, path.beta_low_bytes_per_s), path.beta_high_bytes_per_s)
    off = _apart(beta, within) + IN_RANGE * _apart(within, path.beta_bytes_per_s)
    start = _apart(curve.alpha_s + SMALL_ALPHA_S, own.alpha_s + SMALL_ALPHA_S)
    posting = _apart(curve.last_gamma_s + SMALL_GAMMA_S, own.gamma_s + SMALL_GAMMA_S)
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
    """Kinds with a class that explains the bandwidth, the nearest first; empty where none does."""
    found: dict[str, float] = {}
    for path in paths:
        beta = curve.beta_bytes_per_s * path.beta_bytes_per_s * Curve.of(path, units).s_per_byte
        if LEAST_SHARE * path.beta_low_bytes_per_s <= beta <= MOST_TIMES * path.beta_high_bytes_per_s:
            found[path.kind] = min(found.get(path.kind, math.inf), distance(curve, path, units))
    return tuple(sorted(found, key=lambda kind: found[kind])[:most])


def _apart(a: float, b: float) -> float:
    return abs(math.log(a / b))
