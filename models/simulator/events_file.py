"""What happens to a simulated cluster: paths that slow, workers that die or return, load that shifts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.models.simulator.spec import Change, ClusterSpec, PathChange, WorkerChange
from kvferry.models.toml_file import ConfigError, entries, known_keys, number, read_toml, text
from kvferry.models.workload.base import Floats, Workload

_WHAT = ("path_factor", "load_factor", "dies", "returns")
_KEYS = frozenset(("time_s", "time_share", "worker", *_WHAT))


@dataclass(frozen=True, slots=True)
class Event:
    """At `time` (seconds, or a share of the workload's duration) `what` happens: `path_factor` and
    `load_factor` set `factor` until the next of their kind, `dies` and `returns` name a `worker`."""

    what: str
    time: float
    is_share: bool = False
    factor: float = 1.0
    worker: str = ""

    def time_s(self, duration_s: float) -> float:
        return self.time * duration_s if self.is_share else self.time

    @property
    def label(self) -> str:
        """For a plot."""
        if self.what in ("dies", "returns"):
            return f"{self.worker} {self.what}"
        of = f" of {self.worker}" if self.worker else ""
        return f"{self.what.removesuffix('_factor')}{of} x{self.factor:g}"


def read_events(file: Path) -> tuple[Event, ...]:
    """The [[event]] tables of a TOML file. ConfigError names the file, table, key and value."""
    tables = read_toml(file)
    known_keys(tables, frozenset(("event",)), str(file))
    return parse_events(entries(tables, "event", file), str(file), "event")


def parse_events(found: Sequence[Mapping[str, Any]], where: str, key: str = "events") -> tuple[Event, ...]:
    """Events of plain tables, each with one of `path_factor`, `load_factor`, `dies` and `returns`."""
    return tuple(_event(entry, f"{where}: [[{key}]] {row}") for row, entry in enumerate(found, 1))


def changes_of(events: Sequence[Event], cluster: ClusterSpec, duration_s: float) -> tuple[Change, ...]:
    """What `simulate` takes, in order of time. ConfigError when an event names no worker of the cluster."""
    known = {engine.id for engine in cluster.engines}
    found: list[Change] = []
    for event in events:
        if event.worker and event.worker not in known:
            raise ConfigError(
                f"an event names the worker {event.worker!r}; {cluster.name} has {', '.join(sorted(known))}"
            )
        time_s = event.time_s(duration_s)
        if event.what == "path_factor":
            found.append(PathChange(time_s, event.factor, event.worker))
        elif event.what != "load_factor":
            found.append(WorkerChange(time_s, event.worker, alive=event.what == "returns"))
    return tuple(sorted(found, key=lambda change: change.time_s))


def without_effect(events: Sequence[Event], duration_s: float) -> list[str]:
    """Why events do nothing in a run of `duration_s`: they come after its end, or a worker returns that did
    not die before."""
    told: list[str] = []
    dead: set[str] = set()
    for event in sorted(events, key=lambda event: event.time_s(duration_s)):
        time_s = event.time_s(duration_s)
        if time_s > duration_s:
            told.append(f"{event.label} at {time_s:g} s: after the end of the run, at {duration_s:g} s")
        elif event.what == "dies":
            dead.add(event.worker)
        elif event.what == "returns" and event.worker not in dead:
            told.append(f"{event.label} at {time_s:g} s: it did not die before")
        else:
            dead.discard(event.worker if event.what == "returns" else "")
    return told


def needed_s(events: Sequence[Event], duration_s: float) -> float:
    """How much of a workload's own time comes within `duration_s` under `load_factor` events."""
    starts_s, rates, own_s = _stretches(events, duration_s)
    return float(own_s[-1] + (duration_s - starts_s[-1]) * rates[-1])


def shift_load(workload: Workload, events: Sequence[Event], duration_s: float) -> Workload:
    """The same requests, coming `factor` times as fast from each `load_factor` event on."""
    starts_s, rates, own_s = _stretches(events, duration_s)
    if len(rates) == 1:
        return workload
    stretch = np.searchsorted(own_s, workload.arrival_s, side="right") - 1
    times_s = starts_s[stretch] + (workload.arrival_s - own_s[stretch]) / rates[stretch]
    return replace(workload, arrival_s=times_s)


def _stretches(events: Sequence[Event], duration_s: float) -> tuple[Floats, Floats, Floats]:
    """Of constant factor: when each begins, the factor, and its beginning on the workload's own clock."""
    shifts = sorted(
        (event.time_s(duration_s), event.factor) for event in events if event.what == "load_factor"
    )
    shifts = [(time_s, factor) for time_s, factor in shifts if time_s < duration_s]
    starts_s = np.array([0.0, *(time_s for time_s, _ in shifts)])
    rates = np.array([1.0, *(factor for _, factor in shifts)])
    return starts_s, rates, np.concatenate(([0.0], np.cumsum(np.diff(starts_s) * rates[:-1])))


def _event(entry: Mapping[str, Any], where: str) -> Event:
    known_keys(entry, _KEYS, where)
    if ("time_s" in entry) == ("time_share" in entry):
        raise ConfigError(f"{where}: give 'time_s' or 'time_share'")
    given = [key for key in _WHAT if key in entry]
    if len(given) != 1:
        raise ConfigError(f"{where}: give one of {', '.join(_WHAT)}, not {len(given)}")
    what, is_share = given[0], "time_share" in entry
    time = number(entry, "time_share" if is_share else "time_s", where)
    if is_share and time > 1:
        raise ConfigError(f"{where}: time_share = {time:g} is above 1")
    if what in ("dies", "returns"):
        if "worker" in entry:
            raise ConfigError(f"{where}: {what!r} names the worker itself")
        return Event(what, time, is_share, worker=text(entry, what, where))
    factor = number(entry, what, where)
    if factor <= 0:
        raise ConfigError(f"{where}: {what} = {entry[what]!r} must be above 0")
    worker = text(entry, "worker", where, "")
    if worker and what == "load_factor":
        raise ConfigError(f"{where}: a load_factor is of the whole cluster: leave out 'worker'")
    return Event(what, time, is_share, factor, worker)
