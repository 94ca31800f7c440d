"""Path classes and the rules that pick one for a link nobody has measured yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvferry.models.toml_file import (
    ConfigError,
    check_tables,
    entries,
    known_keys,
    number,
    packaged,
    read_toml,
    text,
)
from kvferry.policy.link import PathClass

KINDS = ("nvlink", "rdma_gpudirect", "rdma_host", "pcie", "tcp", "shared_memory")
SCOPES = ("gpu", "nic", "node")
_PATH_TEXTS = ("name", "kind", "scope", "confidence", "source", "chosen")
_PATH_NUMBERS = ("line_rate_gb_s", "beta_gb_s", "beta_low_gb_s", "beta_high_gb_s", "alpha_us", "gamma_us")
_PATH_TIMES = ("handoff_ms", "registration_ms_per_gb", "first_contact_ms")
_PATH_KEYS = frozenset((*_PATH_TEXTS, *_PATH_NUMBERS, *_PATH_TIMES))
_RULE_KEYS = frozenset(("same_host", "rdma", "gpu", "transport", "path", "src_host", "dst_host"))


@dataclass(frozen=True, slots=True)
class PathRule:
    """A condition on a link and the path class it starts from; None and () fit anything.

    `src_host`, `dst_host`: names of one host, any of which a worker's host may have.
    """

    path: str
    transport: str | None = None
    same_host: bool | None = None
    rdma: bool | None = None
    gpu: tuple[str, ...] = ()
    src_host: tuple[str, ...] = ()
    dst_host: tuple[str, ...] = ()

    @property
    def names_hosts(self) -> bool:
        """Whether it is of one pair of hosts rather than of a kind of link."""
        return bool(self.src_host or self.dst_host)

    def fits(
        self, transport: str, same_host: bool, gpu: str, rdma: bool, src_host: str = "", dst_host: str = ""
    ) -> bool:
        return (
            self.transport in (None, transport)
            and self.same_host in (None, same_host)
            and self.rdma in (None, rdma)
            and (not self.gpu or any(part.lower() in (gpu or "none").lower() for part in self.gpu))
            and (not self.src_host or src_host in self.src_host)
            and (not self.dst_host or dst_host in self.dst_host)
        )


def load_links(extra: Path | None = None) -> dict[str, PathClass]:
    """Path classes by name: the packaged catalogue, then `extra`'s, which override key by key.

    ConfigError names the file, the class and the key that is missing, misspelt or no number.
    """
    if extra:
        check_tables(read_toml(extra), extra)
    merged: dict[str, dict[str, Any]] = {}
    for file in (packaged("links.toml"), *([extra] if extra else [])):
        for entry in entries(read_toml(file), "path", file):
            name = text(entry, "name", f"{file}: a [[path]] table")
            known_keys(entry, _PATH_KEYS, f"{file}: path {name!r}")
            merged[name] = {**merged.get(name, {}), **entry}
    where = str(extra) if extra else "links.toml"
    return {name: _path_class(entry, f"{where}: path {name!r}") for name, entry in merged.items()}


def load_rules(extra: Path | None = None) -> tuple[PathRule, ...]:
    """Rules in order of precedence: `extra`'s before the packaged ones."""
    rules: list[PathRule] = []
    for file in (*([extra] if extra else []), packaged("links.toml")):
        for entry in entries(read_toml(file), "rule", file):
            known_keys(entry, _RULE_KEYS, f"{file}: a [[rule]] table")
            rules.append(
                PathRule(
                    path=text(entry, "path", f"{file}: a [[rule]] table"),
                    transport=entry.get("transport"),
                    same_host=entry.get("same_host"),
                    rdma=entry.get("rdma"),
                    gpu=_names(entry, "gpu", file),
                    src_host=_names(entry, "src_host", file),
                    dst_host=_names(entry, "dst_host", file),
                )
            )
    return tuple(rules)


def default_path_class(
    links: Mapping[str, PathClass],
    rules: Sequence[PathRule],
    transport: str,
    same_host: bool,
    gpu: str = "",
    rdma: bool = False,
    src_host: str = "",
    dst_host: str = "",
) -> PathClass:
    """The class a link starts from. `gpu` is the GPU's name, empty on a machine without one.

    ConfigError when a rule names a class that is not in `links`, or no rule fits.
    """
    return class_of(first_rule(rules, transport, same_host, gpu, rdma, src_host, dst_host), links)


def first_rule(
    rules: Sequence[PathRule],
    transport: str,
    same_host: bool,
    gpu: str = "",
    rdma: bool = False,
    src_host: str = "",
    dst_host: str = "",
) -> PathRule:
    """The rule that says what a link starts from; ConfigError when none fits."""
    for rule in rules:
        if rule.fits(transport, same_host, gpu, rdma, src_host, dst_host):
            return rule
    raise ConfigError(f"no [[rule]] fits transport {transport!r}, same_host {same_host}, gpu {gpu!r}")


def class_of(rule: PathRule, links: Mapping[str, PathClass]) -> PathClass:
    """The class that a rule names; ConfigError when it is not in `links`."""
    if rule.path not in links:
        raise ConfigError(f"a [[rule]] names the path class {rule.path!r}, which is not defined")
    return links[rule.path]


def _names(entry: Mapping[str, Any], key: str, file: Path) -> tuple[str, ...]:
    found = entry.get(key, [])
    if not isinstance(found, list):
        raise ConfigError(f"{file}: a [[rule]] table: {key} = {found!r} is not a list of names")
    return tuple(str(part) for part in found)


def _path_class(entry: Mapping[str, Any], where: str) -> PathClass:
    def gb_s(key: str, default: float | None = None) -> float:
        value = number(entry, key, where, default)
        if value <= 0:
            raise ConfigError(f"{where}: {key} must be above 0")
        return value

    beta = gb_s("beta_gb_s")
    kind, scope = text(entry, "kind", where), text(entry, "scope", where, "node")
    for key, value, known in (("kind", kind, KINDS), ("scope", scope, SCOPES)):
        if value not in known:
            raise ConfigError(f"{where}: {key} = {value!r} is none of {', '.join(known)}")
    return PathClass(
        name=str(entry["name"]),
        alpha_s=number(entry, "alpha_us", where) * 1e-6,
        beta_bytes_per_s=beta * 1e9,
        beta_low_bytes_per_s=gb_s("beta_low_gb_s", beta) * 1e9,
        beta_high_bytes_per_s=gb_s("beta_high_gb_s", beta) * 1e9,
        gamma_s_per_descriptor=number(entry, "gamma_us", where) * 1e-6,
        registration_s_per_byte=number(entry, "registration_ms_per_gb", where, 0.0) * 1e-12,
        first_contact_s=number(entry, "first_contact_ms", where, 0.0) * 1e-3,
        handoff_s=number(entry, "handoff_ms", where, 0.0) * 1e-3,
        source=text(entry, "source", where, ""),
        confidence=text(entry, "confidence", where, ""),
        kind=kind,
        scope=scope,
    )
