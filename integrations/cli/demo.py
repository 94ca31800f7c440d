"""`kvferry local demo`: real workers, a store and the router on this machine, and requests to watch."""

import asyncio
import json
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp
import msgspec
import typer
import uvloop
from rich.console import Console
from rich.live import Live

from kvferry.integrations.cli.demo_table import summary_of, table_of
from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.cli.local import local, running
from kvferry.integrations.cli.worker_sim import cluster_of
from kvferry.integrations.log.record import DecisionRecord
from kvferry.integrations.sglang.ferry import Ferry
from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.spec import specs
from kvferry.integrations.sglang.local.worker import LocalWorker
from kvferry.integrations.sglang.poller import Target
from kvferry.integrations.sglang.serving import running as router
from kvferry.integrations.sglang.settings import Settings
from kvferry.integrations.sglang.simulated.cluster import SimulatedCluster

# Chats that stream all the while, and documents that arrive among them: what a split is for.
CHATS_AT_ONCE = 2
CHAT_PROMPT_TOKENS = (16, 128)
CHAT_OUTPUT_TOKENS = 96
DOCUMENT_PROMPT_TOKENS = (2500, 4000)
DOCUMENT_OUTPUT_TOKENS = 16
FIRST_WORD, LAST_WORD = 300, 4000  # ids of ordinary words in the tiny model's vocabulary
# What two cores under three workers can hold: with a GPU's objectives everything here would be late.
SLO_TTFT_S, SLO_ITL_S = 10.0, 0.25
WARM_UP_DOCUMENTS = 3
READY_S = 60.0
ANSWER_S = 300.0
WarmUp = Callable[[aiohttp.ClientSession], Awaitable[None]]


def register(_: typer.Typer) -> None:
    """Add `demo` to `kvferry local`."""
    local.command(epilog="Example: kvferry local demo --once")(demo)


def demo(
    once: Annotated[bool, typer.Option(help="Exit after the table, instead of serving on.")] = False,
    transport: Annotated[
        Literal["mooncake", "nixl"], typer.Option(help="What moves the KV cache.")
    ] = "mooncake",
    policy: Annotated[str, typer.Option(help="kvferry, or a baseline such as coin(0.5).")] = "kvferry",
    documents: Annotated[int, typer.Option(min=1, help="Long prompts to send.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    log_file: Annotated[
        Path | None, typer.Option(help="Request log [default: decisions.jsonl in the state folder].")
    ] = None,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Simulated H200 workers instead, without SGLang.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as one JSON object.")] = False,
) -> None:
    """Start one colocated worker and one prefill/decode pair, send short and long prompts, show why each
    went where it went."""
    show = Show(Console(stderr=True), documents, seed, once=once, quiet=as_json)
    given: dict[str, Any] = {"port": 0, "policy": policy, "log_file": log_file}
    try:
        if simulated:
            records = uvloop.run(_simulated(given, transport, show))
        else:
            with running(list(specs(1, 1, 1, transport))) as cluster:
                targets = tuple(Target(worker.url) for worker in cluster.workers)
                settings = Settings(targets=targets, slo_ttft_s=SLO_TTFT_S, slo_itl_s=SLO_ITL_S, **given)
                records = uvloop.run(_run(settings, show, partial(_warm_up, cluster=cluster)))
    except (OSError, ValueError) as error:
        raise CommandError(str(error)) from error
    if as_json:
        print(json.dumps({"requests": [_plain(record) for record in records]}))


@dataclass(frozen=True, slots=True)
class Show:
    """What is to be seen, and where."""

    console: Console
    documents: int
    seed: int
    once: bool
    quiet: bool


async def _simulated(given: dict[str, Any], transport: str, show: Show) -> list[DecisionRecord]:
    """Before three simulated workers of this process."""
    async with SimulatedCluster(cluster_of(1, 1, 1, transport)) as cluster:
        targets = tuple(Target(berth.url, berth.role, berth.bootstrap_port) for berth in cluster.berths)
        paths = {transport: cluster.spec.path_class}
        return await _run(Settings(targets=targets, path_classes=paths, **given), show, None)


async def _run(settings: Settings, show: Show, warm_up: WarmUp | None) -> list[DecisionRecord]:
    console = show.console
    async with router(settings) as (ferry, url), aiohttp.ClientSession() as session:
        await _ready(ferry)
        if warm_up is not None:
            await warm_up(session)
        console.print(
            f"Router on {url}: {len(settings.targets)} workers, policy {ferry.policy.name}, "
            f"objectives TTFT {settings.slo_ttft_s:g} s and ITL {settings.slo_itl_s:g} s.",
            highlight=False,
        )
        done: list[DecisionRecord] = []
        with Live(table_of(done), console=console, refresh_per_second=4, transient=True) as live:
            await _traffic(ferry, session, url, show.documents, random.Random(show.seed), done, live.update)
        out = Console()
        if not show.quiet:
            out.print(table_of(done, last=None))
            for line in summary_of(done):
                out.print(line, highlight=False)
            out.print(
                f"\nWhy one of them went where it went: {Path(sys.argv[0])} logs explain {done[-1].id[:8]}",
                highlight=False,
                soft_wrap=True,
            )
        failed = [record for record in done if record.outcome is None or record.outcome.status != "ok"]
        if failed:
            raise CommandError(
                f"{len(failed)} of {len(done)} requests did not succeed: see kvferry logs tail"
            )
        if not show.once:
            stop = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            out.print(f"Still serving on {url}. Ctrl-C ends.", highlight=False, soft_wrap=True)
            await stop.wait()
            console.print("Stopping.")
        return done


async def _ready(ferry: Ferry) -> None:
    wanted = len(ferry.settings.targets)
    async with asyncio.timeout(READY_S):
        # each worker comes up in its own time, and no single event stands for all of them
        while sum(m.worker.healthy for m in ferry.fleet.members.values()) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _warm_up(session: aiohttp.ClientSession, cluster: LocalCluster) -> None:
    """Documents past the router to every worker: a fresh process computes its first ones several times
    slower, and would be avoided for it as long as the router remembers."""

    async def ask(worker: LocalWorker, body: dict[str, Any]) -> None:
        async with session.post(f"{worker.url}/generate", json=body) as answer:
            await answer.read()

    (colocated,), (prefill,), (decode,) = (cluster.of(role) for role in ("colocated", "prefill", "decode"))
    for number in range(WARM_UP_DOCUMENTS):
        ids = [FIRST_WORD + number] * DOCUMENT_PROMPT_TOKENS[0]
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}}
        await ask(colocated, body)
        pair = {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": prefill.bootstrap_port,
            "bootstrap_room": number + 1,
        }
        await asyncio.gather(ask(prefill, body | pair), ask(decode, body | pair))


async def _traffic(
    ferry: Ferry,
    session: aiohttp.ClientSession,
    url: str,
    documents: int,
    rng: random.Random,
    done: list[DecisionRecord],
    show: Callable[[Any], None],
) -> None:
    """Chats one after the other in CHATS_AT_ONCE lanes while the documents arrive one by one."""
    lengths = [rng.randint(*DOCUMENT_PROMPT_TOKENS) for _ in range(documents)]
    finished = ferry.recent.watch()
    arriving = True

    async def ask(prompt_tokens: int, output_tokens: int) -> None:
        body = {
            "input_ids": [rng.randrange(FIRST_WORD, LAST_WORD) for _ in range(prompt_tokens)],
            "sampling_params": {"max_new_tokens": output_tokens, "temperature": 0, "ignore_eos": True},
            "stream": True,
        }
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with session.post(f"{url}/generate", json=body, timeout=timeout) as answer:
            await answer.read()

    async def chat(lane: int) -> None:
        await asyncio.sleep(0.3 * lane)
        while arriving:
            await ask(rng.randint(*CHAT_PROMPT_TOKENS), CHAT_OUTPUT_TOKENS)

    async def collect() -> None:
        while (record := await finished.get()) is not None:
            done.append(record)
            show(table_of(done))

    collecting = asyncio.create_task(collect())
    lanes = [asyncio.create_task(chat(lane)) for lane in range(CHATS_AT_ONCE)]
    await asyncio.sleep(1.5)
    for length in lengths:
        await ask(length, DOCUMENT_OUTPUT_TOKENS)
        await asyncio.sleep(0.3)
    arriving = False
    await asyncio.gather(*lanes)
    await asyncio.sleep(0.1)
    collecting.cancel()


def _plain(record: DecisionRecord) -> Any:
    return msgspec.to_builtins(record)
