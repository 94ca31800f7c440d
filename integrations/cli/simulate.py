"""`kvferry simulate`: would splitting pay here, under which policy, by how much?"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.simulate.engine import Failure, Outcome
from kvferry.integrations.simulate.plots import check_plot, draw, setting_of
from kvferry.integrations.simulate.report import policies_of, scenarios
from kvferry.integrations.simulate.table import notes, policies_table, scenarios_table
from kvferry.integrations.simulate.work import Workforce, complain, cpus, do, write_json
from kvferry.models.simulator.cell import Cell
from kvferry.models.simulator.cluster_file import BUILT_IN as CLUSTERS
from kvferry.models.simulator.cluster_file import read_cluster
from kvferry.models.simulator.events_file import changes_of, read_events
from kvferry.models.simulator.goodput import ScanRule
from kvferry.models.simulator.grid_file import BUILT_IN as GRIDS
from kvferry.models.simulator.grid_file import check_policy, read_grid
from kvferry.models.simulator.source import Source
from kvferry.models.simulator.spec import SLORule
from kvferry.models.simulator.suits import split_names, unsuited
from kvferry.models.toml_file import ConfigError
from kvferry.models.workload.named import BUILT_IN as WORKLOADS

HELP = """Simulate a cluster of SGLang workers under a workload, policy by policy.

The simulated workers take their times from measured tables, with noise and hidden traffic that the
policies do not see. Without options: a built-in workload on a built-in cluster.

Example: kvferry simulate --workload trace.jsonl --policy "kvferry,coin(0.5)" --find-goodput
"""
DEFAULT_POLICIES = "kvferry,always_split,always_colocated,length_threshold(2048),least_load,oracle"


def register(app: typer.Typer) -> None:
    app.command("simulate", help=HELP)(simulate)


def simulate(
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="Mooncake JSONL, Azure CSV, ServeGen, a decision log, a scenario in TOML, or one of "
            + ", ".join(WORKLOADS),
            show_default="conversation",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="FILE|NAME", help=f"TOML, or one of {', '.join(CLUSTERS)}", show_default="4p4d"),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Policies.", show_default=DEFAULT_POLICIES)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="How many, from --seed on.")] = 1,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second.", show_default="the workload's own")
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(help="Seconds simulated.", show_default="the workload's own"),
    ] = None,
    find_goodput: Annotated[
        bool, typer.Option("--find-goodput", help="Scan rates upwards for the highest that 90% meet.")
    ] = False,
    events: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML: slow paths, dying workers, load shifts."),
    ] = None,
    slo_ttft_s: Annotated[
        float | None, typer.Option("--slo-ttft-s", "--slo-ttft", help="TTFT objective, s.")
    ] = None,
    slo_ttft_per_token_ms: Annotated[
        float | None, typer.Option(help="Added to it per prompt token, ms.")
    ] = None,
    slo_itl_s: Annotated[
        float | None, typer.Option("--slo-itl-s", "--slo-itl", help="Mean ITL objective, s.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="one per CPU")] = None,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Where: this machine, or a Ray cluster.")
    ] = "local",
    ray_address: Annotated[
        str | None, typer.Option(envvar="RAY_ADDRESS", metavar="HOST:PORT", help="With --engine ray.")
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME", help=f"Many comparisons from one TOML, or one of {', '.join(GRIDS)}."
        ),
    ] = None,
    traces: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the files that a grid names lie.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep each result; what is there is not computed again."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a plot: a .png, .svg or .pdf.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    workforce = Workforce(engine, jobs or cpus(), ray_address)
    if grid is not None:
        told = {
            "--workload": workload,
            "--cluster": cluster,
            "--policy": policy,
            "--rate": rate,
            "--duration": duration,
            "--find-goodput": find_goodput or None,
            "--events": events,
            "--plot": plot,
            "--slo-ttft-s": slo_ttft_s,
            "--slo-ttft-per-token-ms": slo_ttft_per_token_ms,
            "--slo-itl-s": slo_itl_s,
        }
        if odd := [name for name, value in told.items() if value is not None]:
            raise UsageError(f"{odd[0]} does not go with --grid: the grid's file says it")
        if out is None:
            raise UsageError("--grid needs --out DIR, where each result is kept as it comes")
        _grid(grid, traces, out, workforce, as_json=as_json)
        return
    if traces is not None:
        raise UsageError("--traces goes with --grid")
    if plot:
        check_plot(plot)
    for name, value in (("--rate", rate), ("--duration", duration)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{name} = {value:g} is not above 0")
    try:
        file = read_cluster(cluster or "4p4d")
        source = Source(_name(workload or "conversation"), ((workload or "conversation", 1.0),))
        source.check()
        happening = read_events(events) if events else ()
        changes_of(happening, file.spec, 1.0)
    except ConfigError as error:
        raise CommandError(str(error)) from None
    base = Cell(
        labels=(),
        source=source,
        digest=source.digest(),
        cluster=file.spec,
        slo=_slo(file.slo, slo_ttft_s, slo_ttft_per_token_ms, slo_itl_s),
        policy="",
        seed=seed,
        rate_rps=rate,
        duration_s=duration,
        events=happening,
    )
    names = _policies(policy, base)
    cells = [
        replace(base, policy=name, seed=number, labels=(("policy", name), ("seed", number)), scan=scan)
        for name in names
        for number in range(seed, seed + seeds)
        for scan in (None, *((ScanRule(),) if find_goodput else ()))
    ]
    outcomes = do(cells, workforce, out)
    found = policies_of(cells, outcomes, seed)
    if plot and found:
        _draw(cells, outcomes, found, plot, setting_of(base.cluster, seed, seeds))
    if as_json:
        print(json.dumps(_told(base, seeds, found), allow_nan=False))
    elif found:
        console = Console()
        console.print(policies_table(found, _title(base)))
        for line in notes(found):
            print(line)
        if plot:
            print(f"plot written to {plot}")
    complain(cells, outcomes)


def _grid(name: str, traces: Path | None, out: Path, workforce: Workforce, *, as_json: bool) -> None:
    try:
        grid = read_grid(name, traces)
    except ConfigError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"cannot read {error.filename}: {error.strerror}") from None
    stderr = Console(stderr=True, highlight=False, soft_wrap=True)
    for why in grid.skipped:
        stderr.print(f"left out: {why}", markup=False)
    outcomes = do(grid.cells, workforce, out)
    found = scenarios(grid.cells, outcomes)
    told = {"grid": grid.name, "cells": len(grid.cells), "skipped": list(grid.skipped), "scenarios": found}
    write_json(told, out / "summary.json")
    if as_json:
        print(json.dumps(told, allow_nan=False))
    elif any(scenario["policies"] for scenario in found):
        Console().print(scenarios_table(found, f"{grid.name}: {len(grid.cells)} cells, in {out}"))
    complain(grid.cells, outcomes)


def _policies(listed: str | None, base: Cell) -> list[str]:
    """UsageError for one that is unknown or has nothing to decide on the cluster."""
    names = list(dict.fromkeys(split_names(DEFAULT_POLICIES if listed is None else listed)))
    if listed is None:
        return [name for name in names if not unsuited(name, base.cluster)]
    if not names:
        raise UsageError("--policy names no policy")
    for name in names:
        try:
            check_policy(name, "--policy")
        except ConfigError as error:
            raise UsageError(str(error)) from None
        if why := unsuited(name, base.cluster):
            raise UsageError(f"--policy: {why}")
    return names


def _slo(default: SLORule, ttft_s: float | None, per_token_ms: float | None, itl_s: float | None) -> SLORule:
    for name, value in (("ttft-s", ttft_s), ("ttft-per-token-ms", per_token_ms), ("itl-s", itl_s)):
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"--slo-{name} = {value:g} is not a time")
    return SLORule(
        default.ttft_s if ttft_s is None else ttft_s,
        default.ttft_s_per_token if per_token_ms is None else per_token_ms / 1e3,
        default.itl_s if itl_s is None else itl_s,
    )


def _told(base: Cell, seeds: int, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "seed": base.seed,
        "seeds": seeds,
        "workload": base.source.name,
        "cluster": base.cluster.name,
        "rate_rps": base.rate_rps,
        "duration_s": base.duration_s,
        "path_class": base.cluster.path_class,
        "slo": asdict(base.slo),
        "events": [asdict(event) for event in base.events],
        "policies": found,
    }


def _draw(
    cells: list[Cell],
    outcomes: dict[str, Outcome],
    found: dict[str, dict[str, Any]],
    file: Path,
    setting: str,
) -> None:
    curves: dict[str, list[Any]] = {}
    timelines: dict[str, Any] = {}
    events: list[tuple[float, str]] = []
    for cell in cells:
        outcome = outcomes[cell.key]
        if isinstance(outcome, Failure):
            continue
        if cell.scan:
            curves.setdefault(cell.policy, []).append(outcome["points"])
        elif cell.policy not in timelines:
            timelines[cell.policy] = outcome["timeline"]
            events = [(time_s, label) for time_s, label in outcome["events"]]
    attained = {name: row["slo_attainment"] for name, row in found.items()}
    draw(curves, attained, timelines, events, _title(cells[0]), file, setting)


def _title(cell: Cell) -> str:
    slo = cell.slo
    rate = f" at {cell.rate_rps:g}/s" if cell.rate_rps else ""
    objectives = (
        f"TTFT {slo.ttft_s:g} s + {slo.ttft_s_per_token * 1e3:g} ms/token, ITL {slo.itl_s * 1e3:g} ms"
    )
    return f"{cell.source.name}{rate} on {cell.cluster.name}: {objectives}"


def _name(workload: str) -> str:
    return workload if workload in WORKLOADS else Path(workload).name.partition(".")[0]
