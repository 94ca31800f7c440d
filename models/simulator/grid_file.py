"""Grids from TOML: [[workload]], [[path]], [[slo]] and [[model]] tables and lists of the other axes."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from kvferry.models.link_catalogue import load_links
from kvferry.models.simulator.cluster_file import check_model, count, parse_slo, read_cluster, table
from kvferry.models.simulator.events_file import parse_events
from kvferry.models.simulator.goodput import ScanRule
from kvferry.models.simulator.grid import Axes, Grid, ModelAxis, PathAxis, expand
from kvferry.models.simulator.oracle import make_policy
from kvferry.models.simulator.source import Source
from kvferry.models.simulator.spec import SLORule
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
from kvferry.models.workload.named import BUILT_IN as WORKLOADS

BUILT_IN = ("core", "full")
_LISTS = ("policies", "seeds", "chunks", "rates_rps", "clusters")
_TABLES = ("workload", "path", "slo", "model")
_KEYS = frozenset(("name", "duration_s", "goodput", *_LISTS, *_TABLES))


def read_grid(name_or_path: str, folder: Path | None = None) -> Grid:
    """A built-in grid by name, or a TOML file. Files of its workloads are looked for in `folder`, else
    beside the grid. ConfigError names the file, table, key and value."""
    built_in = name_or_path in BUILT_IN
    path = packaged(f"grids/{name_or_path}.toml") if built_in else Path(name_or_path)
    if not built_in and not path.suffix and not path.exists():
        raise UnknownNameError(f"no grid {name_or_path!r}: give a TOML file, or one of {', '.join(BUILT_IN)}")
    where = name_or_path if built_in else str(path)
    beside = folder if folder is not None else Path() if built_in else path.parent
    tables = read_toml(path)
    return expand(parse_axes(tables, where, beside), text(tables, "name", where, path.stem))


def parse_axes(tables: Mapping[str, Any], where: str, folder: Path) -> Axes:
    """The axes that `tables` describe."""
    known_keys(tables, _KEYS, where)
    sources = [
        _source(entry, f"{where}: [[workload]] {row}", folder)
        for row, entry in enumerate(entries(tables, "workload", where), 1)
    ]
    if not sources:
        raise ConfigError(f"{where}: there is no [[workload]] table")
    policies = _list(tables, "policies", where, str)
    for policy in policies:
        check_policy(policy, where)
    if "rates_rps" in tables and "goodput" in tables:
        raise ConfigError(f"{where}: give rates_rps or [goodput], not both: a scan chooses its own rates")
    goodput = table(tables, "goodput", where, tuple(each.name for each in fields(ScanRule)))
    return Axes(
        sources=tuple(sources),
        clusters=tuple(read_cluster(_beside(name, folder)) for name in _list(tables, "clusters", where, str)),
        policies=policies,
        seeds=_list(tables, "seeds", where, int, (0,)),
        paths=tuple(_path(e, f"{where}: [[path]] {row}") for row, e in _rows(tables, "path", where))
        or (PathAxis(""),),
        slos=tuple(_slo(e, f"{where}: [[slo]] {row}") for row, e in _rows(tables, "slo", where))
        or (("", {}),),
        models=tuple(_model(e, f"{where}: [[model]] {row}") for row, e in _rows(tables, "model", where))
        or (None,),
        chunks=_list(tables, "chunks", where, int, (None,)),
        rates_rps=_list(tables, "rates_rps", where, float, (None,)),
        duration_s=positive(tables, "duration_s", where),
        scan=_scan(goodput, where) if "goodput" in tables else None,
    )


def check_policy(policy: str, where: str) -> None:
    """ConfigError when there is no such policy (UnknownNameError) or its parameters are wrong."""
    try:
        make_policy(policy)
    except ValueError as error:
        if str(error).startswith("unknown policy"):
            raise UnknownNameError(f"{where}: {error}, oracle") from None
        raise ConfigError(f"{where}: {error}") from None


def _rows(tables: Mapping[str, Any], key: str, where: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    return enumerate(entries(tables, key, where), 1)


def _source(entry: Mapping[str, Any], where: str, folder: Path) -> Source:
    known_keys(entry, frozenset(("name", "file", "mix", "start_share", "end_share", "duration_s")), where)
    if ("file" in entry) == ("mix" in entry):
        raise ConfigError(f"{where}: give 'file', or 'mix' = a table of files and their weights")
    mixed = table(entry, "mix", where) if "mix" in entry else {text(entry, "file", where): 1.0}
    parts = tuple((_beside(file, folder), number(mixed, file, f"{where}: mix")) for file in mixed)
    if not parts or min(weight for _, weight in parts) <= 0:
        raise ConfigError(f"{where}: mix = {mixed!r} needs weights above 0")
    start, end = number(entry, "start_share", where, 0.0), number(entry, "end_share", where, 1.0)
    if not start < end <= 1:
        raise ConfigError(
            f"{where}: start_share = {start:g} and end_share = {end:g} hold no time between them"
        )
    default = Path(next(iter(mixed))).name.partition(".")[0] if len(parts) == 1 else None
    source = Source(
        text(entry, "name", where, default), parts, start, end, positive(entry, "duration_s", where)
    )
    try:
        source.check()
    except ConfigError as error:
        missing = [path for path, _ in parts if path not in WORKLOADS and not Path(path).exists()]
        hint = f" (looked for in {folder}: --traces DIR says where else)" if missing else ""
        raise type(error)(f"{where}: {error}{hint}") from None
    return source


def _beside(name: str, folder: Path) -> str:
    """A file named in the grid, packed or not, where it lies in `folder`; anything else as it is."""
    if name not in WORKLOADS:
        for file in (folder / name, folder / f"{name}.gz"):
            if file.is_file():
                return str(file)
    return name


def positive(entry: Mapping[str, Any], key: str, where: str) -> float | None:
    """A number above 0, None when it is not there."""
    if key not in entry:
        return None
    value = number(entry, key, where)
    if value <= 0:
        raise ConfigError(f"{where}: {key} = {entry[key]!r} must be above 0")
    return value


def _path(entry: Mapping[str, Any], where: str) -> PathAxis:
    known_keys(entry, frozenset(("name", "class", "transport", "events")), where)
    path_class, links = text(entry, "class", where), load_links()
    if path_class not in links:
        raise ConfigError(f"{where}: class = {path_class!r} is no path class: known are {', '.join(links)}")
    return PathAxis(
        name=text(entry, "name", where, path_class),
        path_class=path_class,
        transport=text(entry, "transport", where, "") or None,
        events=parse_events(entries(entry, "events", where), where),
    )


def _slo(entry: Mapping[str, Any], where: str) -> tuple[str, Mapping[str, Any]]:
    parse_slo(entry, where, SLORule())
    told = ", ".join(f"{key} {value:g}" for key, value in entry.items() if key != "name")
    return text(entry, "name", where, told), entry


def _model(entry: Mapping[str, Any], where: str) -> ModelAxis:
    known_keys(entry, frozenset(("name", "model", "gpu", "tp")), where)
    model, gpu, tp = text(entry, "model", where), text(entry, "gpu", where), count(entry, "tp", where, 1, 1)
    room = check_model(model, gpu, tp, where)
    return ModelAxis(model, gpu, tp, room, text(entry, "name", where, model))


def _scan(entry: Mapping[str, Any], where: str) -> ScanRule:
    whole = {"leap", "patience", "min_requests"}
    where = f"{where}: [goodput]"
    given = {
        key: count(entry, key, where, 1, 1) if key in whole else number(entry, key, where) for key in entry
    }
    try:
        return ScanRule(**given)  # type: ignore[arg-type]
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _list(tables: Mapping[str, Any], key: str, where: str, kind: type, default: Any = None) -> Any:
    """A list of strings, whole numbers >= 0 or numbers > 0, each once."""
    values = tables.get(key, default)
    if values is None:
        raise ConfigError(f"{where}: {key!r} is missing")
    if values is default:
        return values
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where}: {key} = {values!r} is not a list of values")
    for value in values:
        good = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
        if not good or (kind is not str and not 0 <= value < float("inf")) or (value == 0 and key != "seeds"):
            raise ConfigError(f"{where}: {key} holds {value!r}")
    if len(set(values)) < len(values):
        raise ConfigError(f"{where}: {key} = {values!r} holds a value twice")
    return tuple(values)
