"""`kvferry models`: versions of learned models, and which of them decides."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from kvferry.integrations.cli.errors import UsageError
from kvferry.integrations.cli.models_call import (
    AsJson,
    Namespace,
    Redis,
    Version,
    Who,
    given,
    in_store,
    loaded,
    me,
    share_of,
    version_of,
)
from kvferry.integrations.cli.models_health import register_health
from kvferry.integrations.cli.models_table import (
    arms_table,
    audit_table,
    facts_table,
    metrics_table,
    silent_arms,
    versions_table,
)
from kvferry.integrations.redis.connection import Store
from kvferry.integrations.registry.counts import read_counts, totals
from kvferry.integrations.registry.roles import Roles
from kvferry.integrations.registry.store import Registry
from kvferry.models.residual.artifact import Artifact
from kvferry.models.residual.manifest import ArtifactError, Manifest
from kvferry.policy.decision import STRUCTURED

HELP = """Keep versions of learned models in the store, and say which of them decides.

Every router that has the store follows within 2 s, without dropping a request. 'structured' is the version
without a learned model.

Example: kvferry models canary ./model --share 5% --redis redis://10.0.0.5:6379
"""
LIST = """List versions, the roles they play, and how the arms fare.

Example: kvferry models list --redis redis://10.0.0.5:6379
"""
SHOW = """Show what a version was made from, and how good it was.

Example: kvferry models show m-3f2a --redis redis://10.0.0.5:6379
"""
ADD = """Keep a model in the store; it plays no role yet.

Refused is what was tampered with, cut short, or made by a newer kvferry.

Example: kvferry models add ./model --redis redis://10.0.0.5:6379
"""
SHADOW = """Let a version decide every request too, and only log it; 'none': no version any more.

Example: kvferry models shadow ./model --redis redis://10.0.0.5:6379
"""
CANARY = """Let a version decide a share of all requests.

It ends by itself when it misses objectives more often than what is live, or than the safe rule.

Example: kvferry models canary m-3f2a --share 5% --redis redis://10.0.0.5:6379
"""
PROMOTE = """Let a version decide.

It goes back by itself when it misses objectives more often than the safe rule.

Example: kvferry models promote m-3f2a --redis redis://10.0.0.5:6379
"""
ROLLBACK = """End the canary, if there is one; else let the version decide that did before.

Example: kvferry models rollback --redis redis://10.0.0.5:6379
"""
AUDIT = """Show every change: who, when, from what to what, and why.

Example: kvferry models audit -n 20 --redis redis://10.0.0.5:6379
"""
NONE = "none"


def register(app: typer.Typer) -> None:
    models = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    for name, command, text in (
        ("list", list_versions, LIST),
        ("show", show, SHOW),
        ("add", add, ADD),
        ("shadow", shadow, SHADOW),
        ("canary", canary, CANARY),
        ("promote", promote, PROMOTE),
        ("rollback", rollback, ROLLBACK),
        ("audit", audit, AUDIT),
    ):
        models.command(name, help=text)(command)
    register_health(models)
    app.add_typer(models, name="models")


def list_versions(redis: Redis = None, namespace: Namespace = "kvferry", as_json: AsJson = False) -> None:
    async def work(store: Store) -> tuple[dict[str, Manifest | ArtifactError], Roles, Any]:
        registry = Registry(store)
        roles = await registry.roles()
        return await registry.versions(), roles, totals(await read_counts(store, roles.since))

    versions, roles, arms = in_store(redis, namespace, work)
    if as_json:
        told = [{"version": name, "role": roles.role_of(name), **_plain(of)} for name, of in versions.items()]
        _print_json({"roles": asdict(roles), "versions": told, "arms": arms})
        return
    console = _console()
    console.print(versions_table(versions, roles))
    if arms:
        console.print(arms_table(arms))
        for line in silent_arms(arms, roles):
            console.print(line, markup=False)


def show(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="A version, or the beginning of one.")],
    redis: Redis = None,
    namespace: Namespace = "kvferry",
    as_json: AsJson = False,
) -> None:
    async def work(store: Store) -> tuple[Artifact, Roles]:
        registry = Registry(store)
        name = await registry.named(version)
        return await registry.artifact(name), await registry.roles()

    if version == STRUCTURED:
        raise UsageError(f"{STRUCTURED!r} is the version without a learned model: there is nothing to show")
    artifact, roles = in_store(redis, namespace, work)
    if as_json:
        _print_json({"role": roles.role_of(artifact.version), **msgspec.to_builtins(artifact.manifest)})
        return
    console = _console()
    console.print(facts_table(artifact.manifest, roles), metrics_table(artifact.manifest), sep="\n")


def add(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What 'kvferry train --out DIR' wrote.")],
    redis: Redis = None,
    who: Who = None,
    namespace: Namespace = "kvferry",
    as_json: AsJson = False,
) -> None:
    artifact = loaded(folder.expanduser())
    version = artifact.version
    fresh = in_store(redis, namespace, lambda store: Registry(store).add(artifact, me(who)))
    if as_json:
        _print_json({"version": version, "added": fresh})
    else:
        print(f"{version} is in the store" if fresh else f"{version} was in the store already")


def shadow(
    version: Version,
    redis: Redis = None,
    who: Who = None,
    namespace: Namespace = "kvferry",
    as_json: AsJson = False,
) -> None:
    name = "" if version == NONE else version
    _change(redis, namespace, as_json, who, "shadow", name, lambda roles, found: roles.shadowed(found))


def canary(
    version: Version,
    share: Annotated[
        str, typer.Option(metavar="PART", help="How many of all requests: 5% or 0.05, at most half.")
    ] = "5%",
    redis: Redis = None,
    who: Who = None,
    namespace: Namespace = "kvferry",
    as_json: AsJson = False,
) -> None:
    part = share_of(share)
    _change(
        redis, namespace, as_json, who, "canary", version, lambda roles, found: roles.canaried(found, part)
    )


def promote(
    version: Version,
    redis: Redis = None,
    who: Who = None,
    namespace: Namespace = "kvferry",
    as_json: AsJson = False,
) -> None:
    _change(redis, namespace, as_json, who, "promote", version, lambda roles, found: roles.promoted(found))


def rollback(
    live: Annotated[
        bool, typer.Option("--live", help="Take live back, too, when there is a canary.")
    ] = False,
    redis: Redis = None,
    who: Who = None,
    namespace: Namespace = "kvferry",
    as_json: AsJson = False,
) -> None:
    _change(redis, namespace, as_json, who, "rollback", "", lambda roles, _: roles.rolled_back(live=live))


def audit(
    n: Annotated[int | None, typer.Option("-n", min=1, help="Only so many of the newest entries.")] = None,
    redis: Redis = None,
    namespace: Namespace = "kvferry",
    as_json: AsJson = False,
) -> None:
    entries = in_store(redis, namespace, lambda store: Registry(store).audit(n))
    if as_json:
        _print_json({"entries": [asdict(entry) for entry in entries]})
    else:
        _console().print(audit_table(entries))


def _change(
    redis: str | None,
    namespace: str,
    as_json: bool,
    who: str | None,
    command: str,
    version: str,
    after: Callable[[Roles, str], Roles],
) -> None:
    """Read the roles, change them, and say what is different."""
    named = given(version) if version else ""

    async def work(store: Store) -> tuple[Roles, Roles, str]:
        registry = Registry(store)
        before = await registry.roles()
        found = await version_of(registry, named, me(who)) if version else ""
        fresh = after(before, found)
        return (
            before,
            await registry.change(before, fresh, who=me(who), command=command, version=found),
            found,
        )

    before, done, found = in_store(redis, namespace, work)
    if as_json:
        _print_json({"version": found, "before": asdict(before), "roles": asdict(done)})
    else:
        print(f"{done.text()} (epoch {done.epoch}; before, {before.text()})")


def _console() -> Console:
    """What stands in the store is no markup: a bot's name may end in [bot]."""
    return Console(highlight=False, markup=False)


def _plain(found: Manifest | ArtifactError) -> dict[str, Any]:
    if isinstance(found, ArtifactError):
        return {"refused": str(found)}
    kept = ("kind", "created_s", "feature_set", "rows", "targets", "metrics")
    return {name: value for name, value in msgspec.to_builtins(found).items() if name in kept}


def _print_json(value: Any) -> None:
    print(json.dumps(value))
