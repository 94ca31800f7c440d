"""What paths were before a probe: as the store has them, and as the file of an earlier probe says."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.cli.probe_findings import Key
from kvferry.integrations.redis.connection import STORE_FAILURES, Store, open_store, why
from kvferry.integrations.redis.paths import PathBoard
from kvferry.integrations.redis.url import StoreError
from kvferry.models.link_catalogue import load_links, load_rules
from kvferry.models.paths.curve import Curve
from kvferry.models.paths.fit import Fit
from kvferry.models.paths.override import rules_of, toml_of
from kvferry.models.paths.probed import SOURCE, Probed, toml_of_probed
from kvferry.models.toml_file import ConfigError
from kvferry.policy.link import PathClass

ANSWER_S = 10.0
HEADER = "# Measured by `kvferry probe run`, for `kvferry serve --config`; written anew by the next one.\n\n"
T = TypeVar("T")


async def in_store(url: str, namespace: str, complain: Callable[[str, str], None]) -> dict[Key, Probed]:
    """What routers know now. CommandError of one line when the store cannot be used."""
    found = await _with(url, namespace, lambda store: PathBoard(store, complain).read())
    return {one.key: one for one in found}


async def tell(url: str, namespace: str, found: Sequence[Probed]) -> None:
    """Leave it where routers read it. CommandError of one line when the store cannot be used, and for figures
    that no router would believe."""
    try:
        await _with(url, namespace, lambda store: PathBoard(store, lambda *_: None).write(found))
    except ValueError as error:
        raise CommandError(f"routers cannot be told of a path: {error}") from None


def in_file(file: Path) -> dict[Key, Fit]:
    """By the first names of both hosts, as if they were exact. CommandError for a file that a probe must not
    overwrite."""
    if not file.exists():
        if not file.parent.is_dir():
            raise CommandError(f"cannot write {file}: no folder {file.parent}")
        return {}
    try:
        if not file.read_text(encoding="utf-8").startswith(HEADER):
            raise CommandError(f"--toml {file} was not written by a probe: give another file")
        links = load_links(file)
        return {
            (rule.src_host[0], rule.dst_host[0], rule.transport): Fit(
                Curve.of(links[rule.path]), 0.0, 0.0, None, 0
            )
            for rule in load_rules(file)
            if rule.src_host and rule.dst_host and rule.transport and rule.path in links
        }
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--toml: {error}") from None


def write(file: Path, found: Sequence[Probed], links: Mapping[str, PathClass], *, whole: bool = True) -> None:
    """CommandError when that fails; the file is complete or as it was. Not `whole`: other paths that it has
    stay."""
    new = file.with_name(f".{file.name}.new")
    try:
        others = "" if whole else _others(file, {one.key for one in found})
        new.write_text(HEADER + toml_of_probed(found, links) + others, encoding="utf-8")
        new.replace(file)
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror or error}") from None
    except ConfigError as error:
        raise CommandError(f"cannot write {file}: {error}") from None


def _others(file: Path, keys: set[Key]) -> str:
    if not file.exists():
        return ""
    links, rules = load_links(file), []
    for rule in load_rules(file):
        if rule.src_host and rule.dst_host and rule.transport and rule.path in links:
            key = (rule.src_host[0], rule.dst_host[0], rule.transport)
            if key not in keys and links[rule.path].source.startswith(SOURCE):
                rules.append(rule)
    classes = toml_of(links[name] for name in dict.fromkeys(rule.path for rule in rules))
    return f"\n{classes}\n{rules_of(rules)}"


async def _with(url: str, namespace: str, work: Callable[[Store], Awaitable[T]]) -> T:
    try:
        store = await open_store(url, namespace=namespace, timeout_s=ANSWER_S, client_name="kvferry-probe")
        try:
            await store.check()
            return await work(store)
        except STORE_FAILURES as error:
            raise StoreError(f"store {store.label}: {why(error)}") from None
        finally:
            await store.close()
    except StoreError as error:
        raise CommandError(str(error)) from None
