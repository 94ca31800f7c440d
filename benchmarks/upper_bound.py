"""The highest rate that a fluid model allows in each cell of a grid, beside what was measured.

    python benchmarks/upper_bound.py [--grid core|FILE] [--traces DIR] [--measured OUT/policies.json] [--json]

A linear program of work that flows; benchmarks/policies_parts/fluid.py says what it holds and what it leaves
out (queues, bursts and TTFT above all). `all`: every request served; `tenth lost`: a tenth of all requests
refused at no cost, the dearest, as a metric that asks for 90% allows; `class-fair`: of each quartile of
prompt length at most a fifth. Where a path drops for a while, the rate must be carried while it is down.
Needs scipy (pip install 'kvferry[silicon]').
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from policies import TRACES, read
from policies_parts.bounds import bounds
from rich.console import Console
from rich.table import Table

from kvferry.models.toml_file import ConfigError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--grid", default="core")
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--measured", type=Path, help="policies.json of benchmarks/policies.py")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args()
    try:
        cells = bounded(given.grid, given.traces)
        if given.measured:
            beside(cells, json.loads(given.measured.read_text())["cells"])
    except (ConfigError, OSError, ValueError, RuntimeError) as error:
        sys.exit(f"upper_bound: {error}")
    if given.json:
        print(json.dumps({"cells": cells}))
    else:
        show(cells)


def bounded(grid: str, traces: Path) -> list[dict[str, Any]]:
    """One entry a cell, with its bounds."""
    contest = read(grid, traces, "", None, ())
    cells: list[dict[str, Any]] = [
        {"workload": workload, "path": path, "pool": pool, "slo": slo}
        for workload, path, pool in (scenario.name for scenario in contest.scenarios)
        for slo, _ in contest.slos
    ]
    bounds(contest, cells)
    return cells


def beside(cells: list[dict[str, Any]], measured: list[dict[str, Any]]) -> None:
    """Add what was measured in the same cell."""
    known = {_place(cell): cell for cell in measured}
    for cell in cells:
        if seen := known.get(_place(cell)):
            cell["measured_rps"] = {metric: seen[metric]["kvferry"] for metric in ("plain", "fair")}


def show(cells: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, title="requests/s", title_justify="left")
    for name in ("workload", "path", "pool", "ITL"):
        table.add_column(name)
    for name in ("all", "tenth lost", "class-fair", "kvferry", "8 colocated"):
        table.add_column(name, justify="right")
    for cell in cells:
        bound, other, seen = cell.get("bound_rps"), cell.get("challenger_bound_rps"), cell.get("measured_rps")
        rates = [f"{bound[key]:.1f}" for key in ("all", "tenth_lost", "fair")] if bound else ["", "", ""]
        rates += [f"{seen['plain']:.1f}" if seen else "", f"{other['all']:.1f}" if other else ""]
        table.add_row(*_place(cell), *rates)
    Console(width=100).print(table)


def _place(cell: dict[str, Any]) -> tuple[str, str, str, str]:
    return cell["workload"], cell["path"], cell["pool"], cell["slo"]


if __name__ == "__main__":
    main()
