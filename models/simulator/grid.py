"""A grid of comparisons: every combination of its axes is a cell."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from kvferry.models.simulator.cell import Cell
from kvferry.models.simulator.cluster_file import ClusterFile, parse_slo
from kvferry.models.simulator.events_file import Event, changes_of
from kvferry.models.simulator.goodput import ScanRule
from kvferry.models.simulator.source import Source
from kvferry.models.simulator.spec import ClusterSpec
from kvferry.models.simulator.suits import can_split, unsuited
from kvferry.models.toml_file import ConfigError

MAX_CELLS = 200_000


@dataclass(frozen=True, slots=True)
class PathAxis:
    """A path class between workers (None: the cluster's own) and what happens to it."""

    name: str
    path_class: str | None = None
    transport: str | None = None
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelAxis:
    model: str
    gpu: str
    tp: int
    kv_room_tokens: int
    label: str


@dataclass(frozen=True, slots=True)
class Axes:
    """What is combined. An axis left as it is here: as the cluster file or the workload says."""

    sources: tuple[Source, ...]
    clusters: tuple[ClusterFile, ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    paths: tuple[PathAxis, ...] = (PathAxis(""),)
    slos: tuple[tuple[str, Mapping[str, Any]], ...] = (("", {}),)
    models: tuple[ModelAxis | None, ...] = (None,)
    chunks: tuple[int | None, ...] = (None,)
    rates_rps: tuple[float | None, ...] = (None,)
    duration_s: float | None = None
    scan: ScanRule | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """`skipped`: why combinations were left out, each reason once."""

    name: str
    cells: tuple[Cell, ...]
    skipped: tuple[str, ...] = field(default=())


def expand(axes: Axes, name: str) -> Grid:
    """All cells, those of one scenario beside each other. ConfigError when nothing is left, or two values of
    an axis have one name: their cells would be told as one."""
    _distinct("[[workload]]", (source.name for source in axes.sources))
    _distinct("clusters", (file.spec.name for file in axes.clusters))
    _distinct("[[model]]", (axis.label for axis in axes.models if axis))
    _distinct("[[path]]", (path.name for path in axes.paths))
    _distinct("[[slo]]", (slo_name for slo_name, _ in axes.slos))
    skipped: dict[str, None] = {}
    cells = list(_cells(axes, skipped))
    if not cells:
        raise ConfigError(f"grid {name!r} has no cell: {'; '.join(skipped) or 'an axis is empty'}")
    return Grid(name, tuple(cells), tuple(skipped))


def _distinct(axis: str, names: Iterable[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise ConfigError(f'two {axis} are both called "{name}": give names')


def _cells(axes: Axes, skipped: dict[str, None]) -> Iterator[Cell]:
    digests = {source: source.digest() for source in axes.sources}
    rates = (None,) if axes.scan else axes.rates_rps
    scenarios = product(axes.sources, axes.clusters, axes.models, axes.paths, axes.slos, axes.chunks, rates)
    for made, (source, file, model, path, (slo_name, slo), chunk, rate_rps) in enumerate(scenarios):
        if made * len(axes.policies) * len(axes.seeds) > MAX_CELLS:
            raise ConfigError(f"a grid of more than {MAX_CELLS:,} cells: leave values out of its axes")
        cluster, events = _on_path(_chunked(_of_model(file.spec, model), chunk), path)
        changes_of(events, cluster, 1.0)
        labels: dict[str, str | int | float | None] = {
            "workload": source.name,
            "cluster": file.spec.name,
            **({"model": model.label} if model else {}),
            **({"path": path.name} if path.name else {}),
            **({"slo": slo_name} if slo_name else {}),
            **({"chunk_tokens": chunk} if chunk is not None else {}),
            **({"rate_rps": rate_rps} if rate_rps is not None else {}),
        }
        for policy, seed in product(axes.policies, axes.seeds):
            if why := unsuited(policy, cluster):
                skipped[why] = None
                continue
            yield Cell(
                labels=(*labels.items(), ("policy", policy), ("seed", seed)),
                source=source,
                digest=digests[source],
                cluster=cluster,
                slo=parse_slo(slo, slo_name, file.slo),
                policy=policy,
                seed=seed,
                rate_rps=rate_rps,
                duration_s=source.duration_s or axes.duration_s,
                events=events,
                scan=axes.scan,
            )


def _on_path(cluster: ClusterSpec, path: PathAxis) -> tuple[ClusterSpec, tuple[Event, ...]]:
    """Where nothing can be moved the path is left as it is, so that the cell is run once for all paths."""
    if not can_split(cluster):
        return cluster, tuple(event for event in path.events if event.what != "path_factor")
    return replace(
        cluster,
        path_class=path.path_class or cluster.path_class,
        transport=path.transport or cluster.transport,
    ), path.events


def _of_model(cluster: ClusterSpec, model: ModelAxis | None) -> ClusterSpec:
    if model is None:
        return cluster
    change = {
        "model": model.model,
        "gpu": model.gpu,
        "tp": model.tp,
        "max_total_tokens": model.kv_room_tokens,
    }
    return replace(cluster, engines=tuple(replace(engine, **change) for engine in cluster.engines))  # type: ignore[arg-type]


def _chunked(cluster: ClusterSpec, chunk: int | None) -> ClusterSpec:
    if chunk is None:
        return cluster
    return replace(cluster, engines=tuple(replace(engine, chunk_tokens=chunk) for engine in cluster.engines))
