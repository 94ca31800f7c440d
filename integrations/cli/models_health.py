"""`kvferry models health`: whether routers truly learn, and whether that can be trusted."""

import json
import sys
from dataclasses import asdict

import msgspec
import typer
from rich.console import Console

from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.cli.models_call import AsJson, Namespace, Redis, in_store
from kvferry.integrations.cli.models_health_table import findings_table, heading, terms_table
from kvferry.integrations.redis.connection import STORE_FAILURES, Store, why
from kvferry.integrations.registry.health_store import told
from kvferry.models.health.cluster import found, total
from kvferry.models.health.finding import State, worst
from kvferry.models.health.snapshot import Snapshot

HELP = """Show how well every router learns: samples, coverage and drift per term, and what is dead.

The exit code is 1 when something is bad, so that it can stand in a check.

Example: kvferry models health --redis redis://10.0.0.5:6379
"""


def register_health(models: typer.Typer) -> None:
    """Add `health` to `kvferry models`."""
    models.command("health", help=HELP)(health)


def health(redis: Redis = None, namespace: Namespace = "kvferry", as_json: AsJson = False) -> None:
    snapshots = in_store(redis, namespace, _told)
    if not snapshots:
        raise CommandError(
            "no router has told how its learning is in the last 30 s: is one running with this store?"
        )
    whole, findings = total(snapshots), found(snapshots)
    state = worst([one.finding for one in findings])
    if as_json:
        told = {
            "state": state,
            "findings": [{**asdict(one.finding), "routers": one.routers} for one in findings],
            "total": msgspec.to_builtins(whole),
            "routers": [msgspec.to_builtins(one) for one in snapshots],
        }
        print(json.dumps(told))
    else:
        console = Console(highlight=False)
        console.print(heading(snapshots, whole, state))
        if whole.terms:
            console.print(terms_table(whole))
        console.print(*findings_table(findings, len(snapshots)), sep="\n")
    if state is State.BAD:
        raise typer.Exit(1)


async def _told(store: Store) -> list[Snapshot]:
    def complain(router: str, what: str) -> None:
        print(f"kvferry: passing over what {router!r} told: {what}", file=sys.stderr)

    try:
        return await told(store, complain)
    except STORE_FAILURES as error:
        raise CommandError(f"store {store.label}: {why(error)}") from None
