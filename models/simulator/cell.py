"""One cell of a comparison: one policy on one cluster under one workload with one seed."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import metadata
from typing import Any

from kvferry.models.simulator.events_file import Event, changes_of, needed_s, shift_load
from kvferry.models.simulator.goodput import ATTAINMENT, Point, ScanRule, scan
from kvferry.models.simulator.metrics import figures, timeline
from kvferry.models.simulator.oracle import make_policy
from kvferry.models.simulator.run import Run
from kvferry.models.simulator.simulation import simulate
from kvferry.models.simulator.source import Source
from kvferry.models.simulator.spec import ClusterSpec, SLORule, Watch

Result = dict[str, Any]
SCAN_DURATION_S = 300.0
VERSION = metadata.version("kvferry")


@dataclass(frozen=True, slots=True)
class Cell:
    """`labels` say where in a grid the cell lies, `digest` what the workload held. `rate_rps`: None is the
    workload's own. `scan`: look for the goodput instead of simulating one rate."""

    labels: tuple[tuple[str, str | int | float | None], ...]
    source: Source
    digest: str
    cluster: ClusterSpec
    slo: SLORule
    policy: str
    seed: int
    rate_rps: float | None = None
    duration_s: float | None = None
    events: tuple[Event, ...] = ()
    scan: ScanRule | None = None

    @property
    def key(self) -> str:
        """Equal keys are equal results: all that goes into one, and the version of kvferry; not the labels,
        and not where the workload lies."""
        parts = (
            VERSION,
            (self.digest, self.source.start_share, self.source.end_share),
            _plain(self.cluster),
            (self.policy, self.seed, self.rate_rps, self.duration_s),
            *(_plain(part) for part in (self.slo, self.scan, *self.events) if part is not None),
        )
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


@lru_cache(maxsize=4096)
def _plain(part: ClusterSpec | SLORule | ScanRule | Event) -> str:
    return json.dumps(asdict(part), sort_keys=True)


def run_cell(cell: Cell, watch: Watch | None = None) -> Result:
    """`figures` and `timeline` of the run, or of the last rate that passed and `points` of the scan."""
    return _scanned(cell) if cell.scan else told(cell, *_run(cell, cell.rate_rps, watch=watch))


def told(cell: Cell, run: Run, duration_s: float) -> Result:
    """What is kept of a run."""
    roles = {engine.id: engine.role for engine in cell.cluster.engines}
    return {
        "figures": figures(run, cell.slo),
        "timeline": timeline(run, roles, duration_s),
        "events": [[event.time_s(duration_s), event.label] for event in cell.events],
        "duration_s": duration_s,
    }


def _run(
    cell: Cell,
    rate_rps: float | None,
    *,
    duration_s: float | None = None,
    lost_limit: float | None = None,
    watch: Watch | None = None,
) -> tuple[Run, float]:
    duration_s = duration_s or cell.duration_s
    own_s = None if duration_s is None else needed_s(cell.events, duration_s)
    workload = cell.source.offered(rate_rps, own_s, cell.seed)
    lasts_s = workload.duration_s if duration_s is None else duration_s
    workload = shift_load(workload, cell.events, lasts_s)
    run = simulate(
        cell.cluster,
        workload,
        make_policy(cell.policy),
        seed=cell.seed,
        slo=cell.slo,
        changes=changes_of(cell.events, cell.cluster, lasts_s),
        watch=watch,
        lost_limit=lost_limit,
    )
    return run, lasts_s


def _scanned(cell: Cell) -> Result:
    assert cell.scan is not None
    rule = cell.scan
    best: Result = {}
    usual_s = cell.duration_s or SCAN_DURATION_S

    def measure(rate_rps: float) -> Point:
        nonlocal best
        duration_s = max(usual_s, rule.min_requests / rate_rps)
        run, lasts_s = _run(cell, rate_rps, duration_s=duration_s, lost_limit=1.0 - ATTAINMENT + 1e-9)
        if run.aborted:
            return Point(rate_rps, None, None)
        point = Point(rate_rps, run.attainment(cell.slo), run.fair_attainment(cell.slo))
        if point.passes and rate_rps > best.get("rate_rps", 0.0):
            best = {"rate_rps": rate_rps, **told(cell, run, lasts_s)}
        return point

    found = scan(measure, rule)
    row = {
        **best.get("figures", {}),
        "goodput_rps": found.goodput_rps,
        "fair_goodput_rps": found.fair_goodput_rps,
    }
    points = [[point.rate_rps, point.attainment, point.fair_attainment] for point in found.points]
    return {**best, "figures": row, "points": points}
