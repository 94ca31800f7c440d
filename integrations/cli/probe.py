"""`kvferry probe`: agents on the hosts, and what they find of the paths between them."""

import asyncio
import logging
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.cli.models_call import AsJson, Namespace, Redis
from kvferry.integrations.cli.probe_claims import Claims, known_class
from kvferry.integrations.cli.probe_hosts import DEFAULT_PORT, addresses_of
from kvferry.integrations.cli.probe_outputs import Outputs
from kvferry.integrations.cli.probe_run import Asked, Runs
from kvferry.integrations.probe.agent import serve as serve_agent
from kvferry.integrations.probe.run import Scope
from kvferry.integrations.sglang.describe import node_of
from kvferry.integrations.transports.registry import names
from kvferry.models.toml_file import ConfigError, UnknownNameError

SERVE_HELP = """Run the agent of this host.

It measures this host's paths when `kvferry probe run` asks it to, and runs until it is interrupted.

Example: kvferry probe serve --host 10.0.0.2 --token SECRET
"""
RUN_HELP = """Measure and judge the paths between agents.

Is each what it claims to be? Every ordered pair and transport, with moves of 4 KiB to 256 MiB. Routers of the
same store take the figures for the links between those hosts.

The exit code is 1 when a path cannot be measured, or does not meet the class of --expect.

Example: kvferry probe run --peers 10.0.0.2,10.0.0.5 --expect tcp_25g --toml paths.toml --plot paths.png
"""
# Fewer sizes tell no two regimes from each other; more bytes than that no machine has.
LEAST_MIB, MOST_MIB = 1.0, 2.0**20
MOST_BUDGET_S = 3600.0
Token = Annotated[
    str | None,
    typer.Option(metavar="SECRET", envvar="KVFERRY_PROBE_TOKEN", help="What agents ask for, if they do."),
]


def register(app: typer.Typer) -> None:
    """Add `kvferry probe` to `app`."""
    probe = typer.Typer(
        no_args_is_help=True,
        help="Measure what moving KV between hosts takes.",
        epilog="Example: kvferry probe run --peers 10.0.0.2:8600,10.0.0.5:8600",
    )
    probe.command("serve", help=SERVE_HELP)(serve)
    probe.command("run", help=RUN_HELP)(run)
    app.add_typer(probe, name="probe")


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = DEFAULT_PORT,
    name: Annotated[
        str | None,
        typer.Option(help="This host's name, as in workers' URLs if they have names. Default: its own."),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where the transports of other hosts reach this one. Default: as the probe does.",
        ),
    ] = None,
    token: Token = None,
    memory_mib: Annotated[
        int, typer.Option(min=1, help="Most memory that probes may have here at once.")
    ] = 1024,
) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)

    def ready(bound: int) -> None:
        where = f"[{host}]" if ":" in host else host
        console.print(f"kvferry probe agent on {where}:{bound}", markup=False)
        if node_of(host) == "localhost":
            console.print("Only this machine can reach it; --host ADDRESS lets others.", markup=False)

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("kvferry.probe").setLevel(logging.INFO)

    try:
        asyncio.run(
            serve_agent(
                host,
                port,
                name=name,
                advertise=advertise,
                token=token,
                memory_bytes=memory_mib * 2**20,
                ready=ready,
            )
        )
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot listen on {host}:{port}: {error}") from None


def run(
    peers: Annotated[
        str, typer.Option(metavar="HOST:PORT,...", help=f"Two agents or more; port {DEFAULT_PORT} if none.")
    ],
    transports: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Default: all between hosts that agents have.")
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLAIM",
            help="What paths claim to be: CLASS, TRANSPORT=CLASS, SRC,DST=CLASS or SRC,DST,TRANSPORT=CLASS. "
            "Repeatable. Default: what a router would take them for.",
        ),
    ] = None,
    expect: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Exit with 1 unless every path is as good as that.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="[[path]] and [[rule]] tables, as routers have them.")
    ] = None,
    redis: Redis = None,
    namespace: Namespace = "kvferry",
    toml: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the paths for 'kvferry serve --config'.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the matrix of hosts.")] = None,
    budget: Annotated[float, typer.Option(metavar="SECONDS", help="For each path, about.")] = 60.0,
    largest_mib: Annotated[float, typer.Option(metavar="MIB", help="The largest move.")] = 256.0,
    repeat: Annotated[int, typer.Option(min=1, max=100, help="How often each move is made.")] = 3,
    watch: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Probe again so often, and tell only what is another."),
    ] = None,
    device: Annotated[str, typer.Option(help="Whose memory is moved: cpu, cuda:0.")] = "cpu",
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    for flag, value in (("--budget", budget), ("--watch", watch), ("--largest-mib", largest_mib)):
        if value is not None and not 0.0 < value < math.inf:
            raise UsageError(f"{flag} {value:g}: give more than 0")
    if not LEAST_MIB <= largest_mib <= MOST_MIB:
        raise UsageError(f"--largest-mib {largest_mib:g}: give {LEAST_MIB:g} to {MOST_MIB:,.0f}")
    if budget > MOST_BUDGET_S:
        raise UsageError(f"--budget {budget:g}: give at most {MOST_BUDGET_S:g}")
    if not namespace:
        raise UsageError("--namespace '': give a name, the one that the routers have")
    chosen = tuple(part.strip() for part in transports.split(",")) if transports is not None else None
    if unknown := [name for name in chosen or () if name not in names()]:
        raise UsageError(f"--transports: no transport {unknown[0]!r}: there are {', '.join(names())}")
    if chosen and (twice := sorted({name for name in chosen if chosen.count(name) > 1})):
        raise UsageError(f"--transports: given more than once: {', '.join(twice)}")
    try:
        claims = Claims.load(claim or (), config)
        asked = Asked(
            addresses=addresses_of(peers),
            transports=chosen,
            scope=Scope(int(largest_mib * 2**20), repeat, budget),
            token=token,
            device=device,
            claims=claims,
            expect=known_class(expect, claims.links, "--expect") if expect is not None else None,
            outputs=Outputs(toml, plot, redis, namespace, claims.links),
            watch_s=watch,
            as_json=as_json,
        )
        asyncio.run(Runs(asked).all())
    except UnknownNameError as error:
        raise UsageError(str(error)) from None
    except ConfigError as error:
        raise CommandError(str(error)) from None
