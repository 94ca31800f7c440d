"""How fast the simulator is: the first 3, 6 and 12 thousand requests of a trace, and all of it.

    python benchmarks/simulator_speed.py TRACE [--cluster 4p4d] [--policy least_load,kvferry] [--json]

Every run is a process of its own, so that its peak memory is its own. Prints processor seconds of the
simulation alone (reading the trace is told apart), microseconds per request, and the peak memory of the
process. `linear`: time per request at the longest against the shortest run (1: linear).
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvferry.models.simulator.cluster_file import read_cluster
from kvferry.models.simulator.oracle import make_policy
from kvferry.models.simulator.simulation import simulate
from kvferry.models.workload.reader import read

SIZES = (3000, 6000, 12000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--cluster", default="4p4d", help="a TOML file or a built-in name")
    parser.add_argument("--policy", default="length_threshold(8192),kvferry")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(one(given.trace, given.cluster, given.policy, given.one)))
        return
    runs: list[dict[str, Any]] = []
    work = [(policy, size) for policy in _policies(given.policy) for size in (*SIZES, 0)]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(work))
        for policy, size in work:
            progress.update(task, description=f"{policy}, {size or 'all'}")
            command = [sys.executable, __file__, str(given.trace), "--cluster", given.cluster]
            command += ["--policy", policy, "--one", str(size)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs.append(json.loads(done.stdout))
            progress.advance(task)
    linear = {policy: _linear([run for run in runs if run["policy"] == policy]) for policy, _ in work}
    if given.json:
        print(json.dumps({"runs": runs, "linear": linear}))
    else:
        show(runs, linear)


def one(trace: Path, cluster: str, policy: str, size: int) -> dict[str, Any]:
    begin_s = time.process_time()
    workload = read(trace)
    workload = workload.rows(0, min(size, len(workload))) if size else workload
    file = read_cluster(cluster)
    read_s = time.process_time() - begin_s
    begin_s, begin_wall_s = time.process_time(), time.perf_counter()
    run = simulate(file.spec, workload, make_policy(policy), slo=file.slo)
    took_s = time.process_time() - begin_s
    return {
        "policy": policy,
        "requests": len(run),
        "read_s": round(read_s, 2),
        "simulate_s": round(took_s, 2),
        "wall_s": round(time.perf_counter() - begin_wall_s, 2),
        "us_per_request": round(1e6 * took_s / len(run), 1),
        "engine_steps": run.engine_steps,
        "events": run.events,
        # Linux tells KiB
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1),
    }


def show(runs: list[dict[str, Any]], linear: dict[str, float]) -> None:
    console = Console(width=80)
    table = Table(box=None, pad_edge=False)
    table.add_column("policy")
    for name in ("requests", "CPU s", "us/request", "steps", "events", "peak MB"):
        table.add_column(name, justify="right")
    for run in runs:
        cells = [f"{run['requests']:,}", f"{run['simulate_s']:.2f}", f"{run['us_per_request']:.0f}"]
        cells += [f"{run['engine_steps']:,}", f"{run['events']:,}", f"{run['peak_mb']:.0f}"]
        table.add_row(run["policy"], *cells)
    console.print(table)
    told = ", ".join(f"{policy} {ratio:.2f}" for policy, ratio in linear.items())
    console.print(f"Time per request, longest run to shortest: {told}", highlight=False)


def _linear(runs: list[dict[str, Any]]) -> float:
    return round(float(runs[-1]["us_per_request"] / runs[0]["us_per_request"]), 2)


def _policies(text: str) -> list[str]:
    """Names apart; commas inside parentheses are part of a name."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [name.strip() for name in found if name.strip()]


if __name__ == "__main__":
    main()
