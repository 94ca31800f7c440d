"""The highest rate that a cluster can carry when work flows: a linear program.

Variables: how often workers of each kind that hold a batch of B running decodes make steps of n prompt
tokens, and what share of each class of requests goes where (whole on one worker, or split over two). A step
of a worker takes all its B decodes along and lasts as long as the simulator's tables say; context and
attention work are added by what flows there. Constraints, per kind of worker and batch: prompt tokens and
decode tokens of what flows there (Little's law: B / step time tokens a second); mean step time within the ITL
objective; KV of the batch within the room. Per kind: time; bytes within the NICs.

Left out, all of which only lowers what can be reached: queues and bursts, TTFT, that a worker cannot choose
how many prompt tokens a step takes, integrality, speeds and noise, caches that are finite and one per worker,
KV held for what waits. Two things can raise it: a short run ends before an overload shows, and runs whose
batch swings could do better than ones in which it stands.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from policies_parts.classes import RequestClass

from kvferry.models.model_catalogue import find_shape
from kvferry.models.simulator.spec import ClusterSpec, EngineSpec
from kvferry.models.simulator.world import catalogue_steps, path_of
from kvferry.policy.link import Link
from kvferry.policy.worker import Role

BATCHES = tuple(sorted({round(1.04**power) for power in range(142)}))  # 1 to 252
CHUNKS = (0, 32, 64, 128, 256, 384, 512, 1024, 1280, 2048, 4096, 8192)
LOST, LOST_OF_QUARTILE = 0.1, 0.2


@dataclass(frozen=True, slots=True)
class Site:
    """Workers of one kind that hold a batch of `decodes`, and the [J] steps that they may make: seconds
    without context and attention."""

    kind: int
    engine: EngineSpec
    decodes: int
    tokens: np.ndarray
    seconds: np.ndarray


def sites_of(kind: int, engine: EngineSpec) -> list[Site]:
    """One for each batch."""
    times, found = catalogue_steps(engine), []
    for decodes in (0,) if engine.role is Role.PREFILL else BATCHES:
        most = engine.chunk_tokens - decodes if engine.prefills else 0
        tokens = sorted({n for n in (*CHUNKS, most) if 0 <= n <= max(0, most) and n + decodes})
        if decodes <= engine.max_running_requests:
            seconds = [
                times.tokens_s(n + decodes) + (times.mixed_s if decodes else 0.0)
                if n
                else times.decode_s(decodes)
                for n in tokens
            ]
            found.append(Site(kind, engine, decodes, np.array(tokens, float), np.array(seconds)))
    return found


class Rows:
    """Linear constraints, `row @ x <= limit`."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.rows: list[np.ndarray] = []
        self.limits: list[float] = []

    def add(self, limit: float = 0.0) -> np.ndarray:
        """A row of zeros, to be filled."""
        self.rows.append(np.zeros(self._width))
        self.limits.append(limit)
        return self.rows[-1]

    def scaled(self) -> tuple[np.ndarray, np.ndarray]:
        """Each row's largest coefficient made 1."""
        matrix = np.array(self.rows)
        scale = np.abs(matrix).max(axis=1)
        scale[scale == 0.0] = 1.0
        return matrix / scale[:, None], np.array(self.limits) / scale


def most_rps(
    cluster: ClusterSpec,
    classes: list[RequestClass],
    itl_s: float,
    *,
    lost: float = 0.0,
    lost_of_quartile: float = 1.0,
    path_factor: float = 1.0,
) -> float:
    """Requests a second. `lost`: share of requests that may be refused at no cost, as a metric that asks for
    90% allows; at most `lost_of_quartile` of each quartile of prompt length. Needs scipy."""
    from scipy.optimize import linprog  # type: ignore[import-untyped]

    kinds = Counter(replace(engine, id="", host="", nic="") for engine in cluster.engines)
    engines = list(kinds)
    sites = [site for kind, engine in enumerate(engines) for site in sites_of(kind, engine)]
    ways = _ways(engines, sites)
    starts = np.cumsum([0, *(len(site.seconds) for site in sites)])
    flows = starts[-1] + np.arange(len(ways) * len(classes)).reshape(len(ways), len(classes))
    refused = starts[-1] + flows.size + np.arange(len(classes))
    rate = int(refused[-1]) + 1
    less, equal = Rows(rate + 1), Rows(rate + 1)
    busy = [less.add(float(kinds[engine])) for engine in engines]
    wires = [less.add(kinds[engine] * path_factor * _nic_bytes_per_s(cluster, engine)) for engine in engines]
    for number, site in enumerate(sites):
        mine, times = slice(starts[number], starts[number + 1]), catalogue_steps(site.engine)
        spent = np.zeros(rate + 1)
        tokens, decoded, room = less.add(), less.add(), less.add()
        spent[mine], tokens[mine] = site.seconds, -site.tokens
        decoded[mine], room[mine] = -site.decodes, -site.engine.max_total_tokens
        for way, (prefill, decode) in enumerate(ways):
            if prefill == number:
                spent[flows[way]] += [times.attention_s * each.attention for each in classes]
                tokens[flows[way]] = [each.new_tokens for each in classes]
            if decode == number:
                spent[flows[way]] += [times.context_s * each.context for each in classes]
                decoded[flows[way]] = [each.decode_tokens for each in classes]
                room[flows[way]] = [each.context for each in classes]
        busy[site.kind] += spent
        if site.decodes:
            slow = less.add()
            slow += spent
            slow[mine] -= itl_s
    for way, (prefill, decode) in enumerate(ways):
        if prefill != decode:
            for kind in (sites[prefill].kind, sites[decode].kind):
                byte = _bytes_per_token(engines[kind])
                wires[kind][flows[way]] = [each.moved_tokens * byte for each in classes]
    for number, each in enumerate(classes):
        row = equal.add()
        row[flows[:, number]] = 1.0
        row[refused[number]] = 1.0
        row[rate] = -each.share
    for allowed, quartiles in ((lost, range(4)), *((lost_of_quartile, (q,)) for q in range(4))):
        among = [number for number, each in enumerate(classes) if each.quartile in quartiles]
        row = less.add()
        row[refused[among]] = 1.0
        row[rate] = -allowed * sum(classes[number].share for number in among)
    goal = np.zeros(rate + 1)
    goal[rate] = -1.0
    (upper, limits), (exact, zeros) = less.scaled(), equal.scaled()
    solved = linprog(goal, A_ub=upper, b_ub=limits, A_eq=exact, b_eq=zeros, method="highs")
    if solved.status != 0:
        raise RuntimeError(f"the linear program of {cluster.name} has no solution: {solved.message}")
    return float(solved.x[rate])


def _ways(engines: Sequence[EngineSpec], sites: Sequence[Site]) -> list[tuple[int, int]]:
    """Sites on which a request may prefill and decode."""
    roles = [engines[site.kind].role for site in sites]
    whole = [
        (number, number)
        for number, site in enumerate(sites)
        if engines[site.kind].prefills and roles[number] is not Role.PREFILL
    ]
    sources = [number for number, role in enumerate(roles) if role is Role.PREFILL]
    sinks = [number for number, role in enumerate(roles) if role is Role.DECODE]
    return whole + [(source, sink) for source in sources for sink in sinks]


def _bytes_per_token(engine: EngineSpec) -> float:
    return float(find_shape(engine.model).bytes_per_token("bfloat16", engine.tp))


def _nic_bytes_per_s(cluster: ClusterSpec, engine: EngineSpec) -> float:
    """What one worker's NICs move."""
    return Link.of(path_of(cluster), "", "", cluster.transport, units=engine.tp).beta_bytes_per_s
