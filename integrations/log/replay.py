"""A logged decision's request and cluster again, for any policy to decide anew."""

import zlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np

from kvferry.integrations.log.cluster_table import ClusterTable, read_table
from kvferry.integrations.log.picture import LEADING, unpacked
from kvferry.integrations.log.record import DecisionRecord
from kvferry.policy.candidates import Candidates, Floats
from kvferry.policy.cluster import Cluster, State
from kvferry.policy.correction import Corrector
from kvferry.policy.request import SLO, Request

KEPT = 256


class NoPictureError(ValueError):
    """A record that cannot be replayed; one line says why."""


class Replay:
    """Replays records against the cluster tables of their log (`ReadReport.clusters`: id -> line), which may
    still be growing."""

    def __init__(self, clusters: Mapping[str, bytes]) -> None:
        self._clusters = clusters
        self._tables: dict[str, ClusterTable] = {}
        self._plans: dict[tuple[str, bytes], tuple[Candidates, State]] = {}

    def __call__(self, record: DecisionRecord, corrector: Corrector | None = None) -> tuple[Request, Cluster]:
        """What the decision was given, with `corrector` as the learned model (None: with none, whatever
        `model_version` the log says). Raises NoPictureError."""
        if record.picture is None:
            raise NoPictureError("it has no picture")
        table = self._table(record.picture.cluster)
        workers, plans = len(table.workers), len(table.paths) + _colocated(table)
        sizes = (LEADING, *table.columns.values(), plans, plans, workers, workers)
        try:
            numbers = unpacked(record.picture.numbers, sum(sizes))
            leading, *columns, met, gone, down, held = (
                numbers[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)
            )
            candidates, state = self._plans_of(table, met)
            given = dict(zip(table.columns, columns, strict=True))
            cluster = Cluster(
                candidates,
                replace(state, **_known(state, given)),
                float(leading[0]),
                _excluded(candidates, gone, down),
                corrector,
            )
        except (zlib.error, ValueError, KeyError) as error:
            raise NoPictureError(f"its picture cannot be read: {error}") from None
        return _request(record, leading, candidates, held), cluster

    def _table(self, name: str) -> ClusterTable:
        found = self._tables.get(name)
        if found is None:
            line = self._clusters.get(name)
            if line is None:
                raise NoPictureError(f"its cluster table {name} is not in the log")
            try:
                found = self._tables[name] = read_table(line)
            except msgspec.DecodeError as error:
                raise NoPictureError(f"its cluster table {name} cannot be read: {error}") from None
        return found

    def _plans_of(self, table: ClusterTable, met: Floats) -> tuple[Candidates, State]:
        key = table.id, met.tobytes()
        found = self._plans.get(key)
        if found is None:
            plain = table.candidates()
            moved = frozenset(name for name, flag in zip(plain.keys, met.tolist(), strict=True) if flag)
            if len(self._plans) >= KEPT:
                self._plans.clear()
            candidates = table.candidates(moved)
            found = self._plans[key] = candidates, State.of(candidates)
        return found


def replay(
    record: DecisionRecord, clusters: Mapping[str, bytes], corrector: Corrector | None = None
) -> tuple[Request, Cluster]:
    """`Replay` of a single record."""
    return Replay(clusters)(record, corrector)


def _colocated(table: ClusterTable) -> int:
    return sum(worker.can_colocate and worker.healthy for worker in table.workers)


def _known(state: State, given: Mapping[str, Floats]) -> dict[str, Any]:
    """Logged columns that this version has; ValueError where one has another length now."""
    found: dict[str, Any] = {}
    for name, values in given.items():
        if name in State.__slots__:
            now = getattr(state, name)
            if len(now) != len(values):
                raise ValueError(f"{name} has {len(values)} entries, not {len(now)}")
            found[name] = values.astype(now.dtype)
    return found


def _excluded(candidates: Candidates, plans: Floats, workers: Floats) -> frozenset[str]:
    keys = {key for key, gone in zip(candidates.keys, plans.tolist(), strict=True) if gone}
    ids = {worker.id for worker, gone in zip(candidates.workers, workers.tolist(), strict=True) if gone}
    return frozenset(keys | ids)


def _request(record: DecisionRecord, leading: Floats, candidates: Candidates, held: Floats) -> Request:
    facts = record.request
    _, expected, expected_p90, ttft_s, itl_s = leading.tolist()
    return Request(
        id=record.id,
        model=facts.model,
        prompt_tokens=facts.prompt_tokens,
        max_new_tokens=facts.max_new_tokens,
        expected_output_tokens=expected,
        expected_output_tokens_p90=expected_p90,
        sequences=facts.sequences,
        slo=SLO(ttft_s, itl_s),
        priority=facts.priority,
        held_tokens={candidates.workers[place].id: int(held[place]) for place in np.flatnonzero(held)},
        seed=facts.seed,
    )
