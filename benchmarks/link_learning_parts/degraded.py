"""A link that is degraded and recovers, in the simulator: when the router notices, leaves and returns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvferry.models.simulator.simulation import simulate
from kvferry.models.simulator.spec import ClusterSpec, EngineSpec, PathChange
from kvferry.models.workload.base import Workload
from kvferry.policy.base import Policy, make
from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import Decision
from kvferry.policy.plan import Split
from kvferry.policy.request import Request
from kvferry.policy.worker import Role

SLOW, FAST = 60.0, 180.0
END_S = 420.0
TENFOLD = 0.1
# Believed to be so many times as slow as before: noticed.
NOTICED = 4.0
BACK = 0.5
WINDOW_S = 20.0


@dataclass(slots=True)
class Watched:
    """A policy, and of each of its decisions: when, whether over the link, and how slow that was thought."""

    inner: Policy
    worker: str
    seen: list[tuple[float, bool, float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.inner.name

    def decide(self, request: Request, cluster: Cluster) -> Decision:
        decision = self.inner.decide(request, cluster)
        plan, state, table = decision.plan, cluster.state, cluster.candidates
        believed = state.link_slowness * state.link_byte_factor
        mine = [place for place, link in enumerate(table.links) if self.worker in link.dst_host]
        over = isinstance(plan, Split) and plan.decode == self.worker
        self.seen.append((cluster.time_s, over, float(np.mean(believed[mine]))))
        return decision


@dataclass(frozen=True, slots=True)
class Found:
    """Requests over the link from when it was degraded until that was noticed and until the last one before
    WINDOW_S without any; `tries` after that, to see whether it had recovered; seconds from its recovery until
    it was used again as much as BACK of its `share` before."""

    seed: int
    share: float
    noticed: float
    left: float
    tries: int
    back_s: float


def run(seed: int, *, rate: float = 3.0, explore: float = 0.0) -> Found:
    """d0's NIC falls to a tenth at SLOW and is whole again at FAST. Two prefill and three decode workers."""
    watched = Watched(make("kvferry", explore=explore), "d0")
    changes = [PathChange(SLOW, TENFOLD, "d0"), PathChange(FAST, 1.0, "d0")]
    simulate(cluster(), workload(seed, rate), watched, seed=seed, changes=changes)
    return judged(seed, watched.seen)


def judged(seed: int, seen: Sequence[tuple[float, bool, float]]) -> Found:
    before = [over for time_s, over, _ in seen if SLOW / 3.0 <= time_s < SLOW]
    usual = [slow for time_s, _, slow in seen if SLOW / 3.0 <= time_s < SLOW]
    share, level = float(np.mean(before)), float(np.median(usual))
    during = [(time_s, slow) for time_s, over, slow in seen if SLOW <= time_s < FAST and over]
    times = [SLOW, *(time_s for time_s, _ in during), FAST]
    quiet = (place for place, gap_s in enumerate(np.diff(times)) if gap_s > WINDOW_S)
    left = next(quiet, math.inf)
    at_s = next((time_s for time_s, _, slow in seen if time_s >= SLOW and slow >= NOTICED * level), math.inf)
    noticed = sum(time_s < at_s for time_s, _ in during) if at_s < FAST else math.inf
    tries = len(during) - int(left) if left < math.inf else 0
    after = [(time_s - FAST, over) for time_s, over, _ in seen if time_s >= FAST]
    back_s = math.inf
    for start_s, _ in after:
        window = [over for time_s, over in after if start_s <= time_s < start_s + WINDOW_S]
        if np.mean(window) >= BACK * share:
            back_s = start_s
            break
    return Found(seed, share, noticed, left, tries, back_s)


def cluster() -> ClusterSpec:
    """Qwen3-32B on pairs of H200, joined by 100 Gb/s of TCP."""
    names = [("p0", Role.PREFILL), ("p1", Role.PREFILL)] + [(f"d{n}", Role.DECODE) for n in range(3)]
    engines = tuple(EngineSpec(name, role, "Qwen/Qwen3-32B", "h200", 2) for name, role in names)
    return ClusterSpec("degraded", engines, path_class="tcp_100g")


def workload(seed: int, rate: float) -> Workload:
    rng = np.random.default_rng(seed)
    count = int(END_S * rate)
    prompts = np.clip(3000 * rng.lognormal(-0.3, 0.8, count), 16, 16_000).astype(np.int64)
    outputs = np.clip(150 * rng.lognormal(-0.3, 0.8, count), 2, 1000).astype(np.int64)
    return Workload.of("steady", rng.exponential(1.0 / rate, count).cumsum(), prompts, outputs)
