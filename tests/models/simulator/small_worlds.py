"""Small clusters and workloads, and policies that write down what they are given."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from engine_worlds import STEPS, check_kv

from kvferry.models.simulator.run import Run
from kvferry.models.simulator.simulation import Simulation
from kvferry.models.simulator.spec import Change, ClusterSpec, EngineSpec, SLORule, TruthSpec
from kvferry.models.simulator.trip import Trip
from kvferry.models.workload.base import Workload
from kvferry.policy.base import Policy
from kvferry.policy.candidates import Candidates
from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import Decision
from kvferry.policy.request import Request
from kvferry.policy.worker import Role

QUIET = TruthSpec(0.0, 0.0, 0.0, 10.0, 0.0)
MODEL = "Qwen/Qwen3-32B"


def worker(name: str, role: Role, **more: Any) -> EngineSpec:
    return EngineSpec(name, role, MODEL, "h200", 2, **more)


def cluster_of(
    prefill: int = 1,
    decode: int = 1,
    colocated: int = 1,
    truth: TruthSpec | None = None,
    each: dict[str, Any] | None = None,
    **more: Any,
) -> ClusterSpec:
    """Workers p0, d0, c0, ...; `each`: fields of all of them."""
    roles = [Role.PREFILL] * prefill + [Role.DECODE] * decode + [Role.COLOCATED] * colocated
    names = [f"p{n}" for n in range(prefill)] + [f"d{n}" for n in range(decode)]
    names += [f"c{n}" for n in range(colocated)]
    engines = tuple(worker(name, role, **(each or {})) for name, role in zip(names, roles, strict=True))
    return ClusterSpec("small", engines, truth=truth or TruthSpec(), **more)


def workload_of(
    count: int, seed: int = 0, rate: float = 8.0, prompt: int = 4000, output: int = 120, families: int = 5
) -> Workload:
    """Poisson arrivals, lognormal lengths, prompts of a family beginning alike."""
    rng = np.random.default_rng(seed)
    prompts = np.clip(prompt * rng.lognormal(-0.5, 1.0, count), 1, 10 * prompt).astype(np.int64)
    outputs = np.clip(output * rng.lognormal(-0.5, 1.0, count), 1, 10 * output).astype(np.int64)
    family = rng.integers(families, size=count)
    blocks = [
        [1000 * int(kind) + place for place in range(int(tokens) // 512)]
        for kind, tokens in zip(family, prompts, strict=True)
    ]
    return Workload.of("small", rng.exponential(1 / rate, count).cumsum(), prompts, outputs, blocks=blocks)


def with_outputs(workload: Workload, outputs: Sequence[int]) -> Workload:
    return replace(workload, output_tokens=np.asarray(outputs, dtype=np.int64))


def columns(run: Run) -> dict[str, object]:
    """All of a run, in a form that can be compared."""
    found = {}
    for each in fields(run):
        value = getattr(run, each.name)
        found[each.name] = value.tobytes() if isinstance(value, np.ndarray) else value
    return found


@dataclass(frozen=True)
class Seen:
    """One decision: what it was made from, in full, and what it was."""

    row: int
    time_s: float
    inputs: tuple[str, ...]
    plan: str


@dataclass
class Spy:
    """Decides as `policy` does, and keeps copies of everything that it is given."""

    policy: Policy
    seen: list[Seen] = field(default_factory=list)
    _table: tuple[Candidates, list[str]] | None = None

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, request: Request, cluster: Cluster) -> Decision:
        if self._table is None or self._table[0] is not cluster.candidates:
            self._table = cluster.candidates, _told(cluster.candidates)  # never changed, only replaced
        inputs = (*_told(request), *_told(cluster.state), *_told(cluster), *self._table[1])
        decision = self.policy.decide(request, cluster)
        self.seen.append(Seen(int(request.id), cluster.time_s, inputs, decision.plan.key))
        return decision


def _told(thing: Any) -> list[str]:
    """Every field, arrays to their last bit."""
    found = []
    for each in fields(thing):
        value = getattr(thing, each.name)
        if each.name in ("candidates", "state"):
            continue
        text = value.tobytes().hex() if isinstance(value, np.ndarray) else repr(copy.copy(value))
        if isinstance(value, frozenset):
            text = repr(sorted(value))
        found.append(f"{type(thing).__name__}.{each.name}={text}")
    return found


def watched(
    cluster: ClusterSpec,
    workload: Workload,
    policy: Policy,
    *,
    seed: int = 0,
    changes: Sequence[Change] = (),
    limit_s: float = 3000.0,
) -> tuple[Simulation, Run, list[int]]:
    """A run to its end, with a look at all engines after each event; the rows in the order of their end.
    AssertionError when a request is still there at `limit_s`."""
    simulation = Simulation(cluster, workload, policy, seed, SLORule(), None, None, lambda spec: STEPS)
    events, closed, close = simulation.events, list[int](), simulation._close

    def note(trip: Trip) -> None:
        closed.append(trip.row)
        close(trip)

    simulation._close = note  # type: ignore[method-assign]
    for change in changes:
        events.at(change.time_s, simulation.change, change)
    step, looks = events.run, simulation.world.engines

    def checked(until_s: float = limit_s) -> None:
        stopped = list[bool]()
        events.stop = lambda: stopped.append(True)  # type: ignore[method-assign]
        while not stopped:
            due_s = events.next_s
            assert due_s is not None
            assert due_s <= until_s, f"requests never end: {sorted(simulation._trips)}"
            step(due_s)
            for engine in looks:
                if engine.alive:
                    check_kv(engine)

    events.run = checked  # type: ignore[method-assign]
    run = simulation.run()
    step(events.now_s + 30.0)  # what was aborted leaves with the step that it was in
    return simulation, run, closed
