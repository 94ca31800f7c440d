"""Clusters from TOML: [[worker]] tables, [path], [router], [truth] and a default [slo]."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvferry.models.link_catalogue import load_links
from kvferry.models.simulator.silicon import any_steps
from kvferry.models.simulator.spec import ClusterSpec, EngineSpec, SLORule, TruthSpec
from kvferry.models.simulator.step_catalogue import UnknownStepsError, kv_room_tokens
from kvferry.models.toml_file import (
    ConfigError,
    UnknownNameError,
    entries,
    known_keys,
    number,
    packaged,
    read_toml,
    text,
)
from kvferry.policy.worker import Role

BUILT_IN = ("4p4d", "4p4d-split", "2p2d4c", "8c")
DEFAULT_SLO = SLORule()
MAX_WORKERS = 4096
_TABLES = ("name", "worker", "path", "router", "truth", "slo")
_WORKER_COUNTS = ("chunk_tokens", "max_total_tokens", "max_running_requests", "reserve_tokens")
_WORKER_FLAGS = ("local_prefill", "prefix_cache", "mixed_chunk")
_WORKER_TEXTS = ("id", "host", "nic", "role", "model", "gpu")
_WORKER_KEYS = frozenset((*_WORKER_COUNTS, *_WORKER_FLAGS, *_WORKER_TEXTS, "count", "tp"))
_LETTER = {Role.PREFILL: "p", Role.DECODE: "d", Role.COLOCATED: "c"}


TRANSPORTS = ("mooncake", "nixl")
_TRUTH_BOUNDS = {
    "speed_sigma": (0.0, 2.0),
    "step_sigma": (0.0, 2.0),
    "contention_share": (0.0, 0.99),
    "contention_period_s": (0.1, 1e6),
    "bandwidth_sigma": (0.0, 2.0),
}


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """What a cluster file says."""

    spec: ClusterSpec
    slo: SLORule


def read_cluster(name_or_path: str) -> ClusterFile:
    """A built-in cluster by name, or a TOML file. ConfigError names the file, table, key and value."""
    if name_or_path in BUILT_IN:
        return parse_cluster(read_toml(packaged(f"clusters/{name_or_path}.toml")), name_or_path, name_or_path)
    path = Path(name_or_path)
    if not path.suffix and not path.exists():
        raise UnknownNameError(
            f"no cluster {name_or_path!r}: give a TOML file, or one of {', '.join(BUILT_IN)}"
        )
    return parse_cluster(read_toml(path), str(path), path.stem)


def parse_cluster(tables: Mapping[str, Any], where: str, name: str) -> ClusterFile:
    """The cluster that `tables` describe; `where` starts every error message."""
    known_keys(tables, frozenset(_TABLES), where)
    path = table(tables, "path", where, ("class", "transport"))
    router = table(tables, "router", where, ("poll_s", "staleness_s", "router_s"))
    links, default = load_links(), ClusterSpec("", ())
    path_class = text(path, "class", f"{where}: [path]", default.path_class)
    if path_class not in links:
        raise ConfigError(
            f"{where}: [path]: class = {path_class!r} is no path class: known are {', '.join(links)}"
        )
    transport = text(path, "transport", f"{where}: [path]", default.transport)
    if transport not in TRANSPORTS:
        raise ConfigError(f"{where}: [path]: transport = {transport!r} is none of {', '.join(TRANSPORTS)}")
    spec = ClusterSpec(
        name=text(tables, "name", where, name),
        engines=_engines(tables, where),
        path_class=path_class,
        transport=transport,
        poll_s=between(router, "poll_s", f"{where}: [router]", default.poll_s, 0.01, 3600.0),
        staleness_s=between(router, "staleness_s", f"{where}: [router]", default.staleness_s, 0.0, 3600.0),
        router_s=between(router, "router_s", f"{where}: [router]", default.router_s, 0.0, 60.0),
        truth=_truth(tables, where),
    )
    return ClusterFile(spec, parse_slo(table(tables, "slo", where), f"{where}: [slo]"))


def parse_slo(entry: Mapping[str, Any], where: str, default: SLORule = DEFAULT_SLO) -> SLORule:
    """`ttft_ms`, `ttft_per_token_ms`, `itl_ms`; what is missing is as in `default`."""
    known_keys(entry, frozenset(("name", "ttft_ms", "ttft_per_token_ms", "itl_ms")), where)
    return SLORule(
        number(entry, "ttft_ms", where, default.ttft_s * 1e3) / 1e3,
        number(entry, "ttft_per_token_ms", where, default.ttft_s_per_token * 1e3) / 1e3,
        number(entry, "itl_ms", where, default.itl_s * 1e3) / 1e3,
    )


def table(
    tables: Mapping[str, Any], key: str, where: str, known: tuple[str, ...] | None = None
) -> Mapping[str, Any]:
    """The [key] table of a file, empty when there is none; ConfigError when it is no table."""
    found = tables.get(key, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: {key} = {found!r} must be written as a [{key}] table")
    if known is not None:
        known_keys(found, frozenset(known), f"{where}: [{key}]")
    return found


def count(entry: Mapping[str, Any], key: str, where: str, default: int, least: int = 0) -> int:
    """A whole number >= `least` of an entry, or `default`."""
    value = entry.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{where}: {key} = {value!r} is not a whole number of at least {least}")
    return value


def between(
    entry: Mapping[str, Any], key: str, where: str, default: float, least: float, most: float
) -> float:
    """A number of an entry within bounds, or `default`."""
    value = number(entry, key, where, default)
    if not least <= value <= most:
        raise ConfigError(f"{where}: {key} = {value:g} is not between {least:g} and {most:g}")
    return value


def flag(entry: Mapping[str, Any], key: str, where: str, default: bool) -> bool:
    """true or false of an entry, or `default`."""
    value = entry.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: {key} = {value!r} is neither true nor false")
    return value


def check_model(model: str, gpu: str, tp: int, where: str, room_tokens: int | None = None) -> int:
    """KV room: the file's own `room_tokens`, else what is shipped for the model; ConfigError when the
    simulator has no step times for it, or nobody says what room it has."""
    try:
        any_steps(model, gpu, tp)
    except UnknownStepsError as error:
        raise ConfigError(f"{where}: {error}") from None
    if room_tokens is not None:
        return room_tokens
    try:
        return kv_room_tokens(model, gpu, tp)
    except UnknownStepsError:
        raise ConfigError(
            f"{where}: how much KV {model} on {gpu} TP{tp} has room for is not known: give max_total_tokens"
        ) from None


def _engines(tables: Mapping[str, Any], where: str) -> tuple[EngineSpec, ...]:
    found = entries(tables, "worker", where)
    numbers: Counter[str] = Counter()
    engines: list[EngineSpec] = []
    for row, entry in enumerate(found, 1):
        engines += _worker(entry, f"{where}: [[worker]] {row}", numbers)
    if not engines:
        raise ConfigError(f"{where}: there is no [[worker]] table")
    if len(engines) > MAX_WORKERS:
        raise ConfigError(f"{where}: {len(engines)} workers are more than {MAX_WORKERS}")
    models = sorted({engine.model for engine in engines})
    if len(models) > 1:
        raise ConfigError(f"{where}: a cluster serves one model, not {' and '.join(models)}")
    doubled = [name for name, times in Counter(engine.id for engine in engines).items() if times > 1]
    if doubled:
        raise ConfigError(f"{where}: two workers have the id {doubled[0]!r}")
    roles = {engine.role for engine in engines}
    if (Role.PREFILL in roles) != (Role.DECODE in roles) and not any(e.local_prefill for e in engines):
        lone, other = ("prefill", "decode") if Role.PREFILL in roles else ("decode", "prefill")
        raise ConfigError(f"{where}: there are {lone} workers, but no {other} worker to go with them")
    return tuple(engines)


def _worker(entry: Mapping[str, Any], where: str, numbers: Counter[str]) -> list[EngineSpec]:
    known_keys(entry, _WORKER_KEYS, where)
    role_name = text(entry, "role", where)
    if role_name not in set(Role):
        raise ConfigError(f"{where}: role = {role_name!r} is none of {', '.join(Role)}")
    role, copies = Role(role_name), count(entry, "count", where, 1, least=1)
    if copies > MAX_WORKERS:
        raise ConfigError(f"{where}: count = {copies} is more than {MAX_WORKERS}")
    model, gpu, tp = text(entry, "model", where), text(entry, "gpu", where), count(entry, "tp", where, 1, 1)
    told = count(entry, "max_total_tokens", where, 0, least=1) if "max_total_tokens" in entry else None
    room = check_model(model, gpu, tp, where, told)
    default = EngineSpec("", role, model, gpu, tp, max_total_tokens=room)
    flags = {key: flag(entry, key, where, getattr(default, key)) for key in _WORKER_FLAGS}
    if flags["local_prefill"] and role is not Role.DECODE:
        raise ConfigError(f"{where}: local_prefill is for decode workers, not for role = {role_name!r}")
    counts = {
        key: count(entry, key, where, getattr(default, key), least=0 if key == "reserve_tokens" else 1)
        for key in _WORKER_COUNTS
    }
    prefix, built = text(entry, "id", where, ""), []
    for _ in range(copies):
        worker_id = prefix
        if not prefix or copies > 1:
            stem = prefix or _LETTER[role]
            worker_id = f"{stem}{numbers[stem]}"
            numbers[stem] += 1
        built.append(
            EngineSpec(
                id=worker_id,
                role=role,
                model=model,
                gpu=gpu,
                tp=tp,
                host=text(entry, "host", where, "") or worker_id,
                nic=text(entry, "nic", where, ""),
                local_prefill=flags["local_prefill"],
                prefix_cache=flags["prefix_cache"],
                mixed_chunk=flags["mixed_chunk"],
                chunk_tokens=counts["chunk_tokens"],
                max_total_tokens=counts["max_total_tokens"],
                max_running_requests=counts["max_running_requests"],
                reserve_tokens=counts["reserve_tokens"],
            )
        )
    return built


def _truth(tables: Mapping[str, Any], where: str) -> TruthSpec:
    names = tuple(each.name for each in fields(TruthSpec))
    entry, default = table(tables, "truth", where, names), TruthSpec()
    values = {
        name: between(entry, name, f"{where}: [truth]", getattr(default, name), *_TRUTH_BOUNDS[name])
        for name in names
    }
    return TruthSpec(**values)
