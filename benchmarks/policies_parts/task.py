"""One policy climbing the rates of one scenario with one seed, judged by several objectives at once."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from importlib import metadata

from kvferry.models.simulator.cell import Result
from kvferry.models.simulator.events_file import Event, changes_of
from kvferry.models.simulator.goodput import ATTAINMENT, Point, ScanRule, climb
from kvferry.models.simulator.oracle import make_policy
from kvferry.models.simulator.simulation import simulate
from kvferry.models.simulator.source import Source
from kvferry.models.simulator.spec import ClusterSpec, SLORule

VERSION = metadata.version("kvferry")
METRICS = ("plain", "fair")


@dataclass(frozen=True, slots=True)
class Task:
    """`slos`: objectives of rising ITL, the loosest last, which is the one the policy is told.

    `tag`: what else the result depends on (the state of the code), part of its key.
    """

    labels: tuple[tuple[str, str | int | float | None], ...]
    source: Source
    digest: str
    cluster: ClusterSpec
    slos: tuple[SLORule, ...]
    policy: str
    seed: int
    duration_s: float
    rule: ScanRule
    events: tuple[Event, ...] = ()
    tag: str = ""

    @property
    def key(self) -> str:
        """Equal keys are equal results."""
        parts = (
            (VERSION, self.tag, self.digest, self.source.start_share, self.source.end_share),
            (self.policy, self.seed, self.duration_s),
            *(_plain(part) for part in (self.cluster, self.rule, *self.slos, *self.events)),
        )
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


@lru_cache(maxsize=4096)
def _plain(part: ClusterSpec | SLORule | ScanRule | Event) -> str:
    return json.dumps(asdict(part), sort_keys=True)


def run_task(task: Task) -> Result:
    """`goodput`: per objective the highest rate that passed, plain and fair (0: none); `split_share`: per
    objective the share split there. `points`: rate, then plain and fair attainment per objective; None for a
    run that was given up because even the loosest objective was certainly missed."""
    seen: dict[int, tuple[list[Point], float]] = {}

    def at(place: int) -> tuple[list[Point], float]:
        if place not in seen:
            seen[place] = _measure(task, task.rule.rate_rps(place))
        return seen[place]

    def passes(row: int, fairly: bool, place: int) -> bool:
        point = at(place)[0][row]
        return point.passes_fairly if fairly else point.passes

    for row in range(len(task.slos)):
        climb(partial(passes, row, False), task.rule)
        climb(partial(passes, row, True), task.rule)
    places = sorted(seen)
    goodput, split_share = [], []
    for row in range(len(task.slos)):
        passed = [place for place in places if seen[place][0][row].passes]
        fairly = [place for place in passed if seen[place][0][row].passes_fairly]
        goodput.append([task.rule.rate_rps(some[-1]) if some else 0.0 for some in (passed, fairly)])
        split_share.append(seen[passed[-1]][1] if passed else None)
    points = [
        [task.rule.rate_rps(place), [[point.attainment, point.fair_attainment] for point in seen[place][0]]]
        for place in places
    ]
    return {"goodput": goodput, "split_share": split_share, "points": points}


def _measure(task: Task, rate_rps: float) -> tuple[list[Point], float]:
    duration_s = max(task.duration_s, task.rule.min_requests / rate_rps)
    run = simulate(
        task.cluster,
        task.source.offered(rate_rps, duration_s, task.seed),
        make_policy(task.policy),
        seed=task.seed,
        slo=task.slos[-1],
        changes=changes_of(task.events, task.cluster, duration_s),
        lost_limit=1.0 - ATTAINMENT + 1e-9,
    )
    if run.aborted:
        return [Point(rate_rps, None, None)] * len(task.slos), 0.0
    points = [Point(rate_rps, run.attainment(slo), run.fair_attainment(slo)) for slo in task.slos]
    return points, float(run.split[run.dec >= 0].mean())
