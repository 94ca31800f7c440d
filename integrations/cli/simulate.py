"""`kvferry simulate`: would splitting pay here, under which policy, by how much?"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.simulate.comparison import Comparison
from kvferry.integrations.simulate.output import check_writable, printing
from kvferry.integrations.simulate.plots import check_plot
from kvferry.integrations.simulate.report import scenarios
from kvferry.integrations.simulate.table import notes, policies_table, scenarios_table
from kvferry.integrations.simulate.work import Workforce, complain, cpus, do, warn, write_json
from kvferry.models.simulator.cell import Cell
from kvferry.models.simulator.cluster_file import BUILT_IN as CLUSTERS
from kvferry.models.simulator.cluster_file import read_cluster
from kvferry.models.simulator.events_file import changes_of, read_events
from kvferry.models.simulator.goodput import ScanRule
from kvferry.models.simulator.grid_file import BUILT_IN as GRIDS
from kvferry.models.simulator.grid_file import check_policy, read_grid
from kvferry.models.simulator.source import Source
from kvferry.models.simulator.spec import ClusterSpec, SLORule
from kvferry.models.simulator.suits import split_names, unsuited
from kvferry.models.toml_file import ConfigError, UnknownNameError
from kvferry.models.workload.named import BUILT_IN as WORKLOADS

HELP = """Simulate a cluster of SGLang workers under a workload, policy by policy.

The simulated workers take their times from measured tables, with noise and hidden traffic that the
policies do not see. Without options: would 4 prefill and 4 decode workers beat 8 that do both, at a rate
where policies differ?

Example: kvferry simulate --workload trace.jsonl --policy "kvferry,coin(0.5)" --find-goodput
"""
DEFAULT_POLICIES = "kvferry,always_split,always_colocated,length_threshold(2048),coin(0.5),oracle"
DEFAULT_DURATION_S = 60.0
DEFAULT_RPS_PER_WORKER = 5.0  # of the default workload: near the knee of the built-in clusters


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
        typer.Option(
            metavar="FILE|NAME,...",
            help=f"TOML, or one of {', '.join(CLUSTERS)}; more after commas get the same requests.",
            show_default="4p4d,8c; with --policy or --events 4p4d",
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Policies.", show_default=DEFAULT_POLICIES)
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of all that is drawn.", show_default="0")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="How many, from --seed on.", show_default="1")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Requests per second.", show_default="the workload's own; without --workload 5 per worker"
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            help="Seconds simulated.",
            show_default="the workload's own; without --workload 60; at each rate of a scan 300",
        ),
    ] = None,
    find_goodput: Annotated[
        bool, typer.Option("--find-goodput", help="Scan rates upwards for the highest that 90% meet.")
    ] = False,
    events: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML: slow paths, dying workers, load shifts."),
    ] = None,
    slo_ttft_s: Annotated[
        float | None,
        typer.Option(
            "--slo-ttft-s", "--slo-ttft", help="TTFT objective, s.", show_default="the cluster's, else 0.5"
        ),
    ] = None,
    slo_ttft_per_token_ms: Annotated[
        float | None,
        typer.Option(help="Added to it per prompt token, ms.", show_default="the cluster's, else 0.25"),
    ] = None,
    slo_itl_s: Annotated[
        float | None,
        typer.Option(
            "--slo-itl-s", "--slo-itl", help="Mean ITL objective, s.", show_default="the cluster's, else 0.05"
        ),
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
            "--seed": seed,
            "--seeds": seeds,
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
        check_writable(plot)
    for name, value in (("--rate", rate), ("--duration", duration)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{name} = {value:g} is not above 0")
    try:
        files = [read_cluster(name) for name in _clusters(cluster, alone=bool(policy or events))]
        source = Source(_name(workload or "conversation"), ((workload or "conversation", 1.0),))
        source.check()
        happening = read_events(events) if events else ()
        for file in files:
            changes_of(happening, file.spec, 1.0)
    except UnknownNameError as error:
        raise UsageError(str(error)) from None
    except ConfigError as error:
        raise CommandError(str(error)) from None
    specs, seed, seeds = [file.spec for file in files], seed or 0, seeds or 1
    if doubled := [spec.name for spec in specs if [other.name for other in specs].count(spec.name) > 1]:
        raise UsageError(f"--cluster: two are called {doubled[0]!r}")
    usual = (DEFAULT_RPS_PER_WORKER * len(specs[0].engines), DEFAULT_DURATION_S)
    own_rps, own_s = (None, None) if workload else usual
    base = Cell(
        labels=(),
        source=source,
        digest=source.digest(),
        cluster=specs[0],
        slo=_slo(files[0].slo, slo_ttft_s, slo_ttft_per_token_ms, slo_itl_s),
        policy="",
        seed=seed,
        rate_rps=own_rps if rate is None else rate,
        duration_s=own_s if duration is None else duration,
        events=happening,
    )
    cells = [
        replace(
            base,
            cluster=spec,
            policy=name,
            seed=number,
            labels=(("cluster", spec.name), ("policy", name), ("seed", number)),
            scan=scan,
            duration_s=duration if scan else base.duration_s,
        )
        for spec, names in zip(specs, _policies(policy, specs), strict=True)
        for name in names
        for number in range(seed, seed + seeds)
        for scan in (None, *((ScanRule(),) if find_goodput else ()))
    ]
    outcomes = do(cells, workforce, out)
    warn(cells, outcomes)
    found = Comparison(cells, outcomes, seed)
    with printing():
        if as_json:
            print(json.dumps(found.told(seeds), allow_nan=False))
        elif found.rows:
            Console().print(policies_table(found.rows, found.title))
            for line in notes(found.rows):
                print(line)
    if plot and found.rows:
        found.draw(plot, seeds)
        if not as_json:
            print(f"plot written to {plot}")
    complain(cells, outcomes)


def _grid(name: str, traces: Path | None, out: Path, workforce: Workforce, *, as_json: bool) -> None:
    try:
        grid = read_grid(name, traces)
    except UnknownNameError as error:
        raise UsageError(str(error)) from None
    except ConfigError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"cannot read {error.filename}: {error.strerror}") from None
    stderr = Console(stderr=True, highlight=False, soft_wrap=True)
    for why in grid.skipped:
        stderr.print(f"left out: {why}", markup=False)
    outcomes = do(grid.cells, workforce, out)
    warn(grid.cells, outcomes)
    found = scenarios(grid.cells, outcomes)
    told = {"grid": grid.name, "cells": len(grid.cells), "skipped": list(grid.skipped), "scenarios": found}
    with printing():
        if as_json:
            print(json.dumps(told, allow_nan=False))
        elif any(scenario["policies"] for scenario in found):
            Console().print(scenarios_table(found, f"{grid.name}: {len(grid.cells)} cells, in {out}"))
    write_json(told, out / "summary.json")
    complain(grid.cells, outcomes)


def _clusters(listed: str | None, *, alone: bool) -> list[str]:
    if listed is None:
        return ["4p4d"] if alone else ["4p4d", "8c"]
    names = list(dict.fromkeys(split_names(listed)))
    if not names:
        raise UsageError("--cluster names no cluster")
    return names


def _policies(listed: str | None, clusters: list[ClusterSpec]) -> list[list[str]]:
    """Per cluster those that have something to decide there. UsageError for one that is unknown, or has
    nothing to decide on any of them."""
    names = list(dict.fromkeys(split_names(DEFAULT_POLICIES if listed is None else listed)))
    if not names:
        raise UsageError("--policy names no policy")
    for name in names:
        try:
            check_policy(name, "--policy")
        except ConfigError as error:
            raise UsageError(str(error)) from None
        if listed is not None and all(unsuited(name, cluster) for cluster in clusters):
            raise UsageError(f"--policy: {unsuited(name, clusters[0])}")
    return [[name for name in names if not unsuited(name, cluster)] for cluster in clusters]


def _slo(default: SLORule, ttft_s: float | None, per_token_ms: float | None, itl_s: float | None) -> SLORule:
    for name, value in (("ttft-s", ttft_s), ("ttft-per-token-ms", per_token_ms), ("itl-s", itl_s)):
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"--slo-{name} = {value:g} is not a time")
    return SLORule(
        default.ttft_s if ttft_s is None else ttft_s,
        default.ttft_s_per_token if per_token_ms is None else per_token_ms / 1e3,
        default.itl_s if itl_s is None else itl_s,
    )


def _name(workload: str) -> str:
    return workload if workload in WORKLOADS else Path(workload).name.partition(".")[0]
