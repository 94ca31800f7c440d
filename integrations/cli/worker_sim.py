"""`kvferry worker-sim`: simulated SGLang workers that a real router can talk to."""

import asyncio
import json
import os
import shlex
import signal
from typing import Annotated, Any, Literal

import typer
import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.redis.url import StoreError
from kvferry.integrations.sglang.simulated.cluster import SimulatedCluster
from kvferry.integrations.sglang.simulated.options import SimulationOptions
from kvferry.models.link_catalogue import load_links
from kvferry.models.simulator.cluster_file import BUILT_IN, check_model, read_cluster
from kvferry.models.simulator.spec import ClusterSpec, EngineSpec
from kvferry.models.simulator.world import path_of
from kvferry.models.toml_file import ConfigError
from kvferry.policy.worker import Role

MODEL, GPU, TP = "Qwen/Qwen3-32B", "h200", 2
OF_MOVES = ("path_class", "transport")
OF_ROLE = (
    *("model", "gpu", "tp", "local_prefill", "chunk_tokens", "max_total_tokens", "max_running_requests"),
    *OF_MOVES,
)

HELP = """Run simulated SGLang workers behind SGLang's HTTP interface, for a real router to talk to.

A whole cluster in one process (--cluster), or one worker (--role). Needs neither a GPU nor SGLang. Answers
are filler text; their times are those of the simulated GPUs. docs/simulated_workers.md says what is modelled.

Example: kvferry worker-sim --cluster 4p4d

Example: kvferry worker-sim --role prefill --port 31000 --bootstrap-port 31001
"""


def register(app: typer.Typer) -> None:
    app.command("worker-sim", help=HELP)(worker_sim)


def worker_sim(
    context: typer.Context,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help=f"All workers of a cluster: {', '.join(BUILT_IN)}, or a TOML."
        ),
    ] = None,
    role: Annotated[
        Literal["colocated", "prefill", "decode"] | None, typer.Option(help="One worker of this role.")
    ] = None,
    model: Annotated[str, typer.Option(help="With --role: the model.")] = MODEL,
    gpu: Annotated[str, typer.Option(help="With --role: its GPU.")] = GPU,
    tp: Annotated[int, typer.Option(min=1, help="With --role: how many of them.")] = TP,
    local_prefill: Annotated[
        bool, typer.Option("--local-prefill", help="With --role decode: it may prefill too.")
    ] = False,
    chunk_tokens: Annotated[int, typer.Option(min=16, help="With --role: prefill tokens a step.")] = 2048,
    max_total_tokens: Annotated[
        int | None, typer.Option(min=1, help="With --role: KV room [default: the GPUs' memory].")
    ] = None,
    max_running_requests: Annotated[int, typer.Option(min=1, help="With --role: largest batch.")] = 256,
    path_class: Annotated[
        str, typer.Option(help="With --role: what its KV moves over (kvferry breakeven --path all).")
    ] = ClusterSpec("", ()).path_class,
    transport: Annotated[
        Literal["mooncake", "nixl"], typer.Option(help="With --role: what moves it.")
    ] = "mooncake",
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The first worker's; the others count up. 0: any free.")
    ] = 31000,
    bootstrap_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="The first prefill worker's [default: the one after --port's]."),
    ] = None,
    time_scale: Annotated[
        float, typer.Option(help="Simulated seconds per real one: 10 is ten times faster GPUs and links.")
    ] = 1.0,
    stream_interval: Annotated[int, typer.Option(min=1, help="Tokens per streamed event, as SGLang's.")] = 1,
    half_pair_timeout: Annotated[
        float, typer.Option(help="Simulated seconds that half a pair waits for the other.")
    ] = 300.0,
    seed: Annotated[
        int, typer.Option(help="Of the workers' true speeds, their noise, and output lengths.")
    ] = 0,
    redis: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send telemetry to this store, as kvferry's plugin does."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when ready.")] = False,
) -> None:
    if (cluster is None) == (role is None):
        raise UsageError("give either --cluster NAME|FILE, or --role for one worker")
    if cluster is not None and (odd := given(context, *OF_ROLE)):
        raise UsageError(f"{odd} goes with --role: a cluster says it of each worker")
    if role == "colocated" and (odd := given(context, *OF_MOVES, "half_pair_timeout", "bootstrap_port")):
        raise UsageError(f"{odd} is for pairs: not with --role colocated")
    if role == "decode" and bootstrap_port is not None:
        raise UsageError("--bootstrap-port is for prefill workers: not with --role decode")
    if role is not None and path_class not in load_links():
        raise UsageError(f"--path-class {path_class}: unknown; 'kvferry breakeven --path all' lists them")
    try:
        options = SimulationOptions(
            host=host,
            time_scale=time_scale,
            stream_interval=stream_interval,
            half_pair_timeout_s=half_pair_timeout,
            seed=seed,
            redis=redis or "",
        )
        if cluster is not None:
            spec = read_cluster(cluster).spec
            if bootstrap_port is not None and not any(e.role is Role.PREFILL for e in spec.engines):
                raise UsageError(f"--bootstrap-port is for prefill workers: {spec.name} has none")
        else:
            assert role is not None
            engine = engine_of(
                Role(role),
                f"{role}-{port or os.getpid()}",
                model=model,
                gpu=gpu,
                tp=tp,
                local_prefill=local_prefill,
                chunk_tokens=chunk_tokens,
                max_total_tokens=max_total_tokens,
                max_running_requests=max_running_requests,
            )
            spec = ClusterSpec(engine.id, (engine,), path_class, transport)
        path_of(spec)
        workers = SimulatedCluster(spec, options, port, bootstrap_port)
    except (ConfigError, ValueError) as error:
        raise UsageError(str(error)) from error
    host_workers(workers, as_json=as_json)


def given(context: typer.Context, *names: str) -> str:
    """The first of these parameters that stands on the command line, as it is written there; "" for none."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            return "--" + name.replace("_", "-")
    return ""


def engine_of(
    role: Role,
    name: str,
    *,
    model: str = MODEL,
    gpu: str = GPU,
    tp: int = TP,
    local_prefill: bool = False,
    max_total_tokens: int | None = None,
    **limits: int,
) -> EngineSpec:
    """ConfigError when nobody knows such a worker's speed, or it cannot prefill locally."""
    if local_prefill and role is not Role.DECODE:
        raise ConfigError(f"--local-prefill is for decode workers, not for {role}")
    room = check_model(model, gpu, tp, "--model, --gpu, --tp")
    return EngineSpec(
        id=name,
        role=role,
        model=model,
        gpu=gpu,
        tp=tp,
        local_prefill=local_prefill,
        max_total_tokens=room if max_total_tokens is None else max_total_tokens,
        host=name,
        **limits,  # type: ignore[arg-type]
    )


def cluster_of(
    colocated: int, prefill: int, decode: int, transport: str, *, local_prefill: bool = False
) -> ClusterSpec:
    """Workers of the default model, so many of each role."""
    engines = [
        *(engine_of(Role.COLOCATED, f"c{place}") for place in range(colocated)),
        *(engine_of(Role.PREFILL, f"p{place}") for place in range(prefill)),
        *(engine_of(Role.DECODE, f"d{place}", local_prefill=local_prefill) for place in range(decode)),
    ]
    return ClusterSpec("simulated", tuple(engines), transport=transport)


def host_workers(cluster: SimulatedCluster, *, as_json: bool) -> None:
    """Serve until Ctrl-C or SIGTERM. CommandError when it cannot start."""
    try:
        uvloop.run(_host(cluster, as_json=as_json))
    except (OSError, ValueError, StoreError) as error:
        raise CommandError(str(error)) from error


async def _host(cluster: SimulatedCluster, *, as_json: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with cluster:
        if as_json:
            print(json.dumps(_told(cluster)), flush=True)
        else:
            _show(cluster)
        await stop.wait()
        Console(stderr=True).print("Stopping the simulated workers.")


def _told(cluster: SimulatedCluster) -> dict[str, Any]:
    return {
        "cluster": cluster.spec.name,
        "time_scale": cluster.options.time_scale,
        **({"redis": cluster.options.redis} if cluster.options.redis else {}),
        "workers": [berth.told() for berth in cluster.berths],
        "serve": shlex.join(cluster.serve_words()),
    }


def _show(cluster: SimulatedCluster) -> None:
    engines = [f"{e.model.rpartition('/')[2]} {e.gpu} TP{e.tp}" for e in cluster.spec.engines]
    alike = len(set(engines)) == 1
    table = Table(
        *("worker", Column("url", no_wrap=True), "bootstrap", "role", *(() if alike else ("engine",))),
        title=f"Simulated {engines[0]}" if alike else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
    )
    for berth, what in zip(cluster.berths, engines, strict=True):
        role = f"{berth.role.value}, prefills" if berth.local_prefill else berth.role.value
        row = (berth.id, berth.url, str(berth.bootstrap_port or "-"), role)
        table.add_row(*row, *(() if alike else (what,)))
    console = Console()
    console.print(table)
    console.print("\nRoute requests to them:\n")
    text = shlex.join(cluster.serve_words()).replace(" --", " \\\n  --")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print("\nCtrl-C stops the workers.", highlight=False)
