"""What the commands of `kvferry models` share: the store, the version they name, and how they fail."""

import asyncio
import getpass
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.redis.connection import STORE_FAILURES, Store, open_store, why
from kvferry.integrations.redis.url import StoreError
from kvferry.integrations.registry.roles import RoleError
from kvferry.integrations.registry.store import ConflictError, Registry, UnknownVersionError
from kvferry.models.residual.artifact import Artifact
from kvferry.models.residual.manifest import ArtifactError
from kvferry.policy.decision import STRUCTURED

T = TypeVar("T")
ANSWER_S = 10.0

Redis = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", envvar="KVFERRY_REDIS", help="The store that the routers share."),
]
Namespace = Annotated[str, typer.Option(help="Key prefix in the store.", metavar="NAME")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Who = Annotated[
    str | None, typer.Option("--who", metavar="NAME", help="As in the audit. Default: user@host.")
]
Version = Annotated[
    str,
    typer.Argument(
        metavar="VERSION|DIR",
        help="A version, the beginning of one, 'structured', or a folder with a model to add.",
    ),
]


def in_store(redis: str | None, namespace: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """What `work` returns; every failure as a CommandError of one line."""
    if not redis:
        raise UsageError("no store: give --redis URL, the one that the routers have (or KVFERRY_REDIS)")
    try:
        return asyncio.run(_opened(redis, namespace, work))
    except (ConflictError, RoleError, UnknownVersionError, ArtifactError, StoreError) as error:
        raise CommandError(str(error)) from None


def given(text: str) -> Artifact | str:
    """What an argument names: the model in a folder, or what may be a version in the store."""
    folder = Path(text).expanduser()
    if folder.is_dir():
        return loaded(folder)
    if "/" in text:
        raise CommandError(f"no folder {text!r}: 'kvferry train --out DIR' writes one")
    return text


def loaded(folder: Path) -> Artifact:
    """The model in a folder."""
    try:
        return Artifact.load(folder)
    except ArtifactError as error:
        raise CommandError(str(error)) from None


async def version_of(registry: Registry, named: Artifact | str, who: str) -> str:
    """The version that was named, as good as on its first day; a folder's is added first."""
    if isinstance(named, Artifact):
        await registry.add(named, who)
        return named.version
    version = await registry.named(named)
    if version != STRUCTURED:
        await registry.artifact(version)
    return version


def me(who: str | None) -> str:
    """Who does it, as one line of text."""
    if not who:
        try:
            who = f"{getpass.getuser()}@{socket.gethostname()}"
        except (KeyError, OSError):  # a container may run under a number without a name
            who = f"{os.getuid()}@{socket.gethostname()}"
    return " ".join(who.encode(errors="replace").decode().split())


def share_of(text: str) -> float:
    """`5%` or `0.05`."""
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100.0 if text.strip().endswith("%") else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 < share <= 1.0:
        raise UsageError(f"--share {text!r}: give a part of all requests, such as 5% or 0.05")
    return share


async def _opened(redis: str, namespace: str, work: Callable[[Store], Awaitable[T]]) -> T:
    store = await open_store(redis, namespace=namespace, timeout_s=ANSWER_S, client_name="kvferry-models")
    try:
        await store.check()
        return await work(store)
    except STORE_FAILURES as error:
        raise StoreError(f"store {store.label}: {why(error)}") from error
    finally:
        await store.close()
