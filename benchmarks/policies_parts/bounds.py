"""The fluid bound of every cell of a contest."""

import sys
from typing import Any

from policies_parts.classes import RequestClass, classes_of
from policies_parts.contest import Contest, Scenario, report_part
from policies_parts.fluid import LOST, LOST_OF_QUARTILE, most_rps

from kvferry.models.simulator.source import Source

Entry = dict[str, Any]
DRAWN_S = 600.0


def bounds(contest: Contest, cells: list[Entry]) -> None:
    """Add `bound_rps` (all served, the dearest tenth refused, and that class-fair) and the challenger's to
    each cell. Without scipy nothing is added, and that is said."""
    try:
        import scipy  # type: ignore[import-untyped] # noqa: F401
    except ImportError:
        print("policies: no fluid bound without scipy: pip install 'kvferry[silicon]'", file=sys.stderr)
        return
    known: dict[Source, list[RequestClass]] = {}
    by_name = {scenario.name: scenario for scenario in contest.scenarios}
    slos = dict(contest.slos)
    memo: dict[tuple[Scenario, float], Entry] = {}
    for cell in cells:
        scenario = by_name[cell["workload"], cell["path"], cell["pool"]]
        itl_s = slos[cell["slo"]].itl_s
        for key, where in (("bound_rps", scenario), ("challenger_bound_rps", contest.challenger(scenario))):
            if where is None:
                continue
            if where.source not in known:
                known[where.source] = classes_of(requests_of(where))
            if (where, itl_s) not in memo:
                memo[where, itl_s] = bound(where, known[where.source], itl_s)
            cell[key] = memo[where, itl_s]


def bound(scenario: Scenario, classes: list[RequestClass], itl_s: float) -> Entry:
    """Where a path drops for a while, the rate has to be carried while it is down."""
    drops = [event.factor for event in scenario.events if event.what == "path_factor"]
    factor = min(drops, default=1.0)
    return {
        "all": most_rps(scenario.cluster, classes, itl_s, path_factor=factor),
        "tenth_lost": most_rps(scenario.cluster, classes, itl_s, lost=LOST, path_factor=factor),
        "fair": most_rps(
            scenario.cluster,
            classes,
            itl_s,
            lost=LOST,
            lost_of_quartile=LOST_OF_QUARTILE,
            path_factor=factor,
        ),
    }


def requests_of(scenario: Scenario) -> Any:
    """All requests of the half that is reported."""
    source = report_part(scenario.source, 0, 1)
    try:
        return source.offered(None, None, 0)
    except ValueError:  # drawn workloads without a duration of their own
        return source.offered(None, DRAWN_S, 0)
