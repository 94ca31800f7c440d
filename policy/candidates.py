"""Every plan that a set of workers allows, as a table of arrays: built when the workers or the paths
change, used by every decision until then."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvferry.policy.decision import Reason
from kvferry.policy.kvshape import element_bytes, padded_tokens
from kvferry.policy.layout import Relation, RelationKind, relate
from kvferry.policy.link import Link
from kvferry.policy.plan import Colocated, Plan, Split
from kvferry.policy.worker import Role, Worker

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]
LinkOf = Callable[[Worker, Worker, str], Link]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """W workers (sorted by id) and the P plans they allow: `colocated_count` colocated ones first.

    `pre`, `dec`: [P] index of the worker that prefills and that decodes (equal when colocated).
    `page_tokens`, `decodes` (1 where a worker can hold running decodes, 0 on prefill workers) and `mode_of`
    (0 where requests can run colocated, else 1) are [W].
    Link columns are [P] and zero for colocated plans. `wire_bytes`, `window_wire_bytes`: moved bytes per
    token of the growing and of the window layers, the latter for at most `window_tokens` per sequence;
    `bounded`: there are such layers, or a fixed state. `merged_descriptors`: descriptors of one
    contiguous run (0 where pages never merge).
    `link_index` numbers the distinct links, so that moves in flight can be counted on each; a link is there
    once for every kind of layout relation (`link_relations`) moved over it; `plan_links` are [P].
    `every` is true for all plans.
    `impossible` gives reason code and text for every plan or pair that cannot run.
    All workers serve one model.
    """

    workers: tuple[Worker, ...]
    index: Mapping[str, int]
    plans: tuple[Plan, ...]
    keys: tuple[str, ...]
    links: tuple[Link, ...]
    plan_links: tuple[Link | None, ...]
    relations: tuple[Relation | None, ...]
    path_classes: tuple[str, ...]
    impossible: Mapping[str, tuple[Reason, str]]
    colocated_count: int
    bounded: bool
    every: Bools
    page_tokens: Floats
    decodes: Floats
    mode_of: Ints
    pre: Ints
    dec: Ints
    split: Bools
    link_index: Ints
    link_relations: tuple[str, ...]
    alpha_s: Floats
    s_per_byte: Floats
    s_per_byte_slow: Floats
    gamma_s: Floats
    meeting_s: Floats
    meeting_s_per_byte: Floats
    wire_bytes: Floats
    window_wire_bytes: Floats
    window_tokens: Floats
    fixed_bytes: Floats
    descriptors_per_token: Floats
    merged_descriptors: Floats
    repack_s_per_byte: Floats

    @classmethod
    def build(
        cls,
        workers: Sequence[Worker],
        link_of: LinkOf,
        down: Mapping[str, str] | None = None,
        met: frozenset[str] = frozenset(),
    ) -> "Candidates":
        """`down`: plan keys a breaker holds open, with its reason. `met`: plan keys that already moved."""
        fleet = tuple(sorted(workers, key=lambda worker: worker.id))
        index = {worker.id: i for i, worker in enumerate(fleet)}
        impossible: dict[str, tuple[Reason, str]] = {}
        colocated: list[tuple[Plan, Relation | None, Link | None]] = []
        split: list[tuple[Plan, Relation | None, Link | None]] = []
        for worker in fleet:
            if worker.can_colocate:
                if worker.healthy:
                    colocated.append((Colocated(worker.id), None, None))
                else:
                    impossible[Colocated(worker.id).key] = (Reason.WORKER_DOWN, f"{worker.id} is down")
        for src in (worker for worker in fleet if worker.role is Role.PREFILL):
            for dst in (worker for worker in fleet if worker.role is Role.DECODE):
                shared = sorted(set(src.transports) & set(dst.transports))
                for transport in shared:
                    plan = Split(src.id, dst.id, transport)
                    refused = _refusal(plan, src, dst, down or {}) or _second(plan, src, dst, shared)
                    if refused:
                        impossible[plan.key] = refused
                        continue
                    split.append(
                        (plan, relate(src.layout, dst.layout, src.shape), link_of(src, dst, transport))
                    )
                if not shared:
                    impossible[f"split:{src.id}>{dst.id}"] = (
                        Reason.INCOMPATIBLE_LAYOUT,
                        f"no common transport: {list(src.transports)} and {list(dst.transports)}",
                    )
        rows = colocated + sorted(split, key=lambda row: row[0].key)
        return cls._compile(fleet, index, rows, impossible, met)

    @classmethod
    def _compile(
        cls,
        fleet: tuple[Worker, ...],
        index: dict[str, int],
        rows: list[tuple[Plan, Relation | None, Link | None]],
        impossible: dict[str, tuple[Reason, str]],
        met: frozenset[str],
    ) -> "Candidates":
        links: dict[tuple[str, str, str, str], int] = {}
        distinct: list[Link] = []
        columns = {name: np.zeros(len(rows)) for name in _COLUMNS}
        link_index = np.zeros(len(rows), dtype=np.intp)
        pre = np.zeros(len(rows), dtype=np.intp)
        dec = np.zeros(len(rows), dtype=np.intp)
        for row, (plan, relation, link) in enumerate(rows):
            if isinstance(plan, Colocated):
                pre[row] = dec[row] = index[plan.worker]
                continue
            assert link is not None
            assert relation is not None
            pre[row], dec[row] = index[plan.prefill], index[plan.decode]
            key = (link.src_host, link.dst_host, link.transport, relation.kind.value)
            if key not in links:
                links[key] = len(distinct)
                distinct.append(link)
            link_index[row] = links[key]
            for name, value in _split_row(fleet[pre[row]], fleet[dec[row]], relation, link).items():
                columns[name][row] = value
            if plan.key in met:
                columns["meeting_s"][row] = columns["meeting_s_per_byte"][row] = 0.0
        alone = [row for row in rows if isinstance(row[0], Colocated)]
        return cls(
            workers=fleet,
            index=index,
            plans=tuple(row[0] for row in rows),
            keys=tuple(row[0].key for row in rows),
            links=tuple(distinct),
            plan_links=tuple(row[2] for row in rows),
            relations=tuple(row[1] for row in rows),
            path_classes=tuple(row[2].path_class if row[2] else "" for row in rows),
            impossible=impossible,
            colocated_count=sum(isinstance(row[0], Colocated) for row in rows),
            bounded=bool(columns["window_wire_bytes"].any() or columns["fixed_bytes"].any()),
            every=np.ones(len(rows), dtype=np.bool_),
            page_tokens=np.array([float(max(1, worker.layout.page_size)) for worker in fleet]),
            decodes=np.array([float(worker.role is not Role.PREFILL) for worker in fleet]),
            mode_of=np.array([int(i not in pre[: len(alone)]) for i in range(len(fleet))], dtype=np.intp),
            pre=pre,
            dec=dec,
            split=np.array([isinstance(row[0], Split) for row in rows], dtype=np.bool_),
            link_index=link_index,
            link_relations=tuple(key[3] for key in links),
            **columns,
        )


_COLUMNS = (
    "alpha_s",
    "s_per_byte",
    "s_per_byte_slow",
    "gamma_s",
    "meeting_s",
    "meeting_s_per_byte",
    "wire_bytes",
    "window_wire_bytes",
    "window_tokens",
    "fixed_bytes",
    "descriptors_per_token",
    "merged_descriptors",
    "repack_s_per_byte",
)
# Gather and scatter of a staged move, in bytes per second of one GPU's memory: an order of magnitude
# under HBM's rate, for there is no measured figure; learned per pair once moves are observed.
STAGING_BYTES_PER_S = 100e9


def _refusal(plan: Split, src: Worker, dst: Worker, down: Mapping[str, str]) -> tuple[Reason, str] | None:
    for worker in (src, dst):
        if not worker.healthy:
            return Reason.WORKER_DOWN, f"{worker.id} is down"
    if src.bootstrap_port is None:
        return Reason.INCOMPATIBLE_LAYOUT, f"{src.id} tells no bootstrap port"
    if src.model != dst.model:
        return Reason.INCOMPATIBLE_LAYOUT, f"{src.model} on prefill, {dst.model} on decode"
    relation = relate(src.layout, dst.layout, src.shape)
    if not relation.possible:
        return Reason.INCOMPATIBLE_LAYOUT, relation.reason
    if plan.key in down:
        return Reason.PATH_DOWN, down[plan.key]
    return None


def _second(plan: Split, src: Worker, dst: Worker, shared: Sequence[str]) -> tuple[Reason, str] | None:
    """Why a pair's other transport cannot be used: two are only had where pages move as they are, and a
    decode worker with two must be told by the prefill worker which one it serves."""
    started_with = next(name for name in (*src.transports, *dst.transports) if name in shared)
    if (
        plan.transport != started_with
        and relate(src.layout, dst.layout, src.shape).kind is not RelationKind.DIRECT
    ):
        return Reason.INCOMPATIBLE_LAYOUT, f"unequal layouts move over {started_with} alone"
    if plan.transport in dst.transports[1:] and not src.bootstrap_ports:
        return (
            Reason.INCOMPATIBLE_LAYOUT,
            f"{src.id} does not tell decode workers that it serves {plan.transport}",
        )
    return None


def _split_row(src: Worker, dst: Worker, relation: Relation, link: Link) -> dict[str, float]:
    tp = max(src.layout.tp, dst.layout.tp)
    shape = src.shape
    element = element_bytes(src.layout.dtype)
    per_run = relation.descriptors_per_token * src.layout.page_size
    slow = min(link.beta_low_bytes_per_s, link.beta_bytes_per_s)
    repack = 2.0 / STAGING_BYTES_PER_S if relation.kind is RelationKind.STAGED else 0.0
    merges = link.merges_runs and relation.kind is RelationKind.DIRECT
    return {
        "alpha_s": link.alpha_s + link.handoff_s,
        "s_per_byte": 1.0 / max(link.beta_bytes_per_s, 1.0),
        "s_per_byte_slow": 1.0 / max(slow, 1.0),
        "gamma_s": link.gamma_s_per_descriptor,
        "meeting_s": link.first_contact_s,
        "meeting_s_per_byte": link.registration_s_per_byte,
        "wire_bytes": shape.elements_per_token(tp) * element,
        "window_wire_bytes": shape.window_elements_per_token(tp) * element,
        "window_tokens": float(padded_tokens(shape.window_tokens, src.layout.page_size)),
        "fixed_bytes": float(shape.fixed_bytes),
        "descriptors_per_token": 0.0 if merges else relation.descriptors_per_token,
        "merged_descriptors": per_run if merges else 0.0,
        "repack_s_per_byte": repack,
    }
