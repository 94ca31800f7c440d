"""`kvferry local`: SGLang workers on this machine's CPU, real or simulated."""

import asyncio
import json
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.cli.worker_sim import cluster_of, given, host_workers
from kvferry.integrations.redis.embedded import EmbeddedValkey
from kvferry.integrations.redis.url import StoreError
from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.spec import WorkerOptions, WorkerSpec, specs
from kvferry.integrations.sglang.local.worker import LocalWorker, LocalWorkerError
from kvferry.integrations.sglang.simulated.cluster import SimulatedCluster
from kvferry.integrations.sglang.simulated.options import SimulationOptions

REAL_ONLY = (
    *("page_size", "max_total_tokens", "max_running_requests", "context_length"),
    *("timeout", "log_dir", "worker_args"),
)

local = typer.Typer(
    name="local",
    help="Run SGLang workers on this machine's CPU: real ones, with a tiny model made on the spot, or with "
    "--simulated simulated ones, which need no SGLang.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Example: kvferry local up --transport nixl",
)


def register(app: typer.Typer) -> None:
    """Add `kvferry local` and its subcommands to `app`."""
    app.add_typer(local)


@local.command(epilog="Example: kvferry local up --colocated 1 --prefill 1 --decode 1 --transport nixl")
def up(
    context: typer.Context,
    colocated: Annotated[int, typer.Option(min=0, help="Workers that do prefill and decode.")] = 1,
    prefill: Annotated[int, typer.Option(min=0, help="Prefill workers.")] = 1,
    decode: Annotated[int, typer.Option(min=0, help="Decode workers.")] = 1,
    transport: Annotated[
        Literal["mooncake", "nixl"], typer.Option(help="What moves the KV cache.")
    ] = "mooncake",
    page_size: Annotated[int, typer.Option(min=1, help="Tokens per KV page.")] = 1,
    max_total_tokens: Annotated[int, typer.Option(min=1, help="KV slots per worker, in tokens.")] = 16384,
    max_running_requests: Annotated[int, typer.Option(min=1, help="Largest batch per worker.")] = 8,
    context_length: Annotated[int, typer.Option(min=1, help="Longest prompt plus output, in tokens.")] = 8192,
    half_pair_timeout: Annotated[
        int, typer.Option(min=1, help="Seconds that half a pair waits for the other half.")
    ] = 30,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until every worker must be ready.")] = 300,
    log_dir: Annotated[
        Path | None, typer.Option(help="Keep the workers' logs here (default: removed at the end).")
    ] = None,
    plugin: Annotated[
        bool,
        typer.Option(
            "--plugin",
            help="Switch on all that kvferry's plugin does in workers: telemetry, both transports per "
            "request (on Mooncake's workers), prefill on decode workers.",
        ),
    ] = False,
    redis: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where --plugin sends telemetry (default: a store of its own)."),
    ] = None,
    simulated: Annotated[
        bool,
        typer.Option(
            "--simulated",
            help="Simulated workers instead, without SGLang: as many of each role; with --plugin they send "
            "telemetry, and decode workers prefill (kvferry worker-sim has more of it).",
        ),
    ] = False,
    time_scale: Annotated[
        float, typer.Option(help="With --simulated: simulated seconds per real one.")
    ] = 1.0,
    worker_args: Annotated[str, typer.Option(help="More SGLang flags for every worker, in one string.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when ready.")] = False,
) -> None:
    """Start workers, print their URLs, and keep them until Ctrl-C."""
    if bool(prefill) != bool(decode):
        raise UsageError("a split needs both --prefill and --decode to be at least 1, or both 0")
    if colocated + prefill == 0:
        raise UsageError("nothing to start: give --colocated, or --prefill and --decode")
    if simulated and (odd := given(context, *REAL_ONLY)):
        raise UsageError(f"{odd} is for real workers: not with --simulated")
    if not simulated and given(context, "time_scale"):
        raise UsageError("--time-scale is for simulated workers: give --simulated too")
    if redis is not None and not plugin:
        raise UsageError("--redis is where --plugin sends telemetry: give both")
    if simulated:
        try:
            pace = SimulationOptions(time_scale=time_scale, half_pair_timeout_s=float(half_pair_timeout))
        except ValueError as error:
            raise UsageError(str(error)) from error
        spec = cluster_of(colocated, prefill, decode, transport, local_prefill=plugin)
        with _store(redis, wanted=plugin) as store_url:
            host_workers(SimulatedCluster(spec, replace(pace, redis=store_url)), as_json=as_json)
        return
    chosen = list(specs(colocated, prefill, decode, transport))
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell's background job is born deaf to SIGINT
        signal.signal(number, _leave)
    with _store(redis, wanted=plugin) as store_url:
        options = WorkerOptions(
            page_size=page_size,
            max_total_tokens=max_total_tokens,
            max_running_requests=max_running_requests,
            context_length=context_length,
            bootstrap_timeout_s=half_pair_timeout,
            waiting_timeout_s=half_pair_timeout,
            extra_args=tuple(shlex.split(worker_args)),
            env=plugin_env(store_url) if store_url else (),
        )
        with running(chosen, options, log_dir=log_dir, timeout_s=timeout) as cluster:
            try:
                if as_json:
                    told = {"workers": [describe(w) for w in cluster.workers]}
                    print(json.dumps(told | ({"redis": store_url} if store_url else {})), flush=True)
                else:
                    _show(cluster, store_url)
                _watch(cluster)
            except KeyboardInterrupt:  # also from one who has read the line above and is done already
                Console(stderr=True).print("Stopping the workers.")


def plugin_env(redis_url: str) -> tuple[tuple[str, str], ...]:
    """The environment that switches on everything in a worker."""
    switches = ("KVFERRY_TELEMETRY", "KVFERRY_DUAL_TRANSPORT", "KVFERRY_LOCAL_PREFILL")
    return (("KVFERRY_REDIS", redis_url), *((name, "1") for name in switches))


@contextmanager
def _store(given: str | None, *, wanted: bool) -> Iterator[str]:
    """The URL of the store for telemetry, "" where none is wanted; one of our own ends with the block."""
    if given or not wanted:
        yield given or ""
        return
    server = EmbeddedValkey()
    try:
        asyncio.run(server.start())
    except StoreError as error:
        raise CommandError(str(error)) from error
    try:
        yield server.url
    finally:
        server.stop()


@contextmanager
def running(
    chosen: Sequence[WorkerSpec],
    options: WorkerOptions | None = None,
    *,
    log_dir: Path | None = None,
    timeout_s: float = 300.0,
) -> Iterator[LocalCluster]:
    """Run a cluster for the length of a `with` block, with a progress display on stderr while it starts.

    Raises CommandError when a worker does not start; by then all others are gone.
    """
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.fields[state]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        tasks = {}
        told: dict[str, str] = {}

        def show(workers: Sequence[LocalWorker]) -> None:
            for worker in workers:
                if not console.is_terminal and told.get(worker.name) != worker.state:
                    console.print(f"{worker.name}: {worker.state}", highlight=False)
                    told[worker.name] = worker.state
                if worker.name not in tasks:
                    tasks[worker.name] = progress.add_task(worker.name, total=1, state=worker.state)
                done = worker.state == "ready"
                progress.update(tasks[worker.name], state=worker.state, completed=int(done))

        cluster = LocalCluster(chosen, options, log_dir=log_dir, timeout_s=timeout_s, on_progress=show)
        try:
            cluster.start()
        except LocalWorkerError as error:
            for line in error.log_tail:
                console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
            raise CommandError(str(error)) from error
    try:
        yield cluster
    finally:
        cluster.stop()


def describe(worker: LocalWorker) -> dict[str, str | int | None]:
    """Return what `--json` tells about a worker."""
    return {
        "name": worker.name,
        "url": worker.url,
        "role": worker.role,
        "bootstrap_port": worker.bootstrap_port,
        "transport": worker.transport,
        "pid": worker.pid,
    }


def serve_command(workers: Sequence[LocalWorker], redis_url: str = "") -> str:
    """Return the `kvferry serve` command line that routes to `workers` and reads what they told a store."""
    words = ["kvferry serve", *([f"--redis {redis_url}"] if redis_url else [])]
    words += [f"--worker-urls {worker.url}" for worker in workers if worker.role == "colocated"]
    words += [f"--prefill {w.url} {w.bootstrap_port}" for w in workers if w.role == "prefill"]
    words += [f"--decode {w.url}" for w in workers if w.role == "decode"]
    return " \\\n  ".join(words)


def _show(cluster: LocalCluster, redis_url: str) -> None:
    table = Table("worker", Column("url", no_wrap=True, min_width=22), "bootstrap", "pid", "ready")
    for worker in cluster.workers:
        table.add_row(
            worker.name,
            worker.url,
            str(worker.bootstrap_port or "-"),
            str(worker.pid),
            f"{worker.started_s or 0:.0f} s",
        )
    console = Console()
    console.print(table)
    console.print("Route requests to them:\n")
    console.print(serve_command(cluster.workers, redis_url), markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nLogs: {cluster.log_dir}. Ctrl-C stops the workers.", highlight=False, soft_wrap=True)


def _watch(cluster: LocalCluster) -> None:
    """Block while any worker lives; name each one that ends."""
    running_now = list(cluster.workers)
    while running_now:
        for worker in [w for w in running_now if not w.alive]:
            running_now.remove(worker)
            Console(stderr=True).print(f"{worker.name} ({worker.url}) has ended", highlight=False)
        time.sleep(0.5)
    raise CommandError("every worker has ended")


def _leave(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
