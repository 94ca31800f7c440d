"""Training rows out of the simulator, for `predictors.py` beside this file."""

import itertools
from dataclasses import dataclass, field

import numpy as np

from kvferry.models.simulator.cluster_file import read_cluster
from kvferry.models.simulator.simulation import simulate
from kvferry.models.training.rows import Rows
from kvferry.models.workload.base import Workload
from kvferry.policy import base
from kvferry.policy.base import Policy
from kvferry.policy.cluster import Cluster
from kvferry.policy.correction import TARGETS
from kvferry.policy.costs import Costs
from kvferry.policy.decision import Decision
from kvferry.policy.request import Request

CLUSTER = "2p2d4c"
START_S = 1.8e9
SLOT_S = 20.0


@dataclass
class Watched:
    """A policy that keeps what it was shown and said of each request's first try. One request in ten is
    placed by chance, so that not only plans that look good are learned of."""

    policy: Policy
    seen: dict[int, Costs] = field(default_factory=dict)
    chance: Policy = field(default_factory=lambda: base.make("random_by_workers"))

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, request: Request, cluster: Cluster) -> Decision:
        row = int(request.id)
        policy = self.chance if row % 10 == 0 else self.policy
        decision = policy.decide(request, cluster)
        if row not in self.seen:
            self.seen[row] = decision.costs
            # worked out now, and the catalogue's transfer with them: the state that they are of will change
            _ = decision.costs.features
        return decision


def simulated_rows(requests: int, seed: int, rate_rps: float = 12.0) -> Rows:
    """Of one run on 8 workers: the rate goes up and down, lengths are lognormal, prompts share beginnings."""
    policy = Watched(base.make("kvferry"))
    spec = read_cluster(CLUSTER)
    run = simulate(spec.spec, _workload(requests, seed, rate_rps), policy, seed=seed, slo=spec.slo)
    rows = np.array([i for i in sorted(policy.seen) if run.ok[i] and not run.rescued[i]])
    costs = [policy.seen[i] for i in rows.tolist()]
    actual = np.full((len(rows), len(TARGETS)), np.nan, np.float32)
    structured = actual.copy()
    for place, name in enumerate(("ttft", "itl", "queue", "prefill", "transfer")):
        if name != "prefill":  # no outcome tells
            actual[:, place] = getattr(run, f"{name}_s")[rows]
        prefix = "structured_" if name in ("ttft", "itl") else ""
        told = [getattr(each, f"{prefix}{name}_s") for each in costs]
        structured[:, place] = [value if prefix else value.p50 for value in told]
    actual[run.output_tokens[rows] < 2, 1] = np.nan
    return Rows(
        features=np.array([each.features for each in costs], np.float32),
        actual_s=actual,
        structured_s=structured,
        time_s=START_S + run.arrival_s[rows],
        split=run.split[rows],
        key=rows.astype(np.uint64),
        catalogue_s=np.array([each.catalogue_transfer_s or np.nan for each in costs], np.float32),
    ).in_time_order()


def _workload(requests: int, seed: int, rate_rps: float) -> Workload:
    rng = np.random.default_rng(seed)
    arrivals: list[float] = []
    for slot in itertools.count():
        if len(arrivals) >= requests:
            break
        count = rng.poisson(SLOT_S * rate_rps * rng.choice((0.4, 0.8, 1.0, 1.6)))
        arrivals += sorted(SLOT_S * (slot + rng.random(count)))
    prompts = np.clip(rng.lognormal(7.3, 1.1, requests), 16, 30_000).astype(int)
    blocks = [
        [family * 1000 + i for i in range(int(tokens * share) // 512)]
        for family, tokens, share in zip(
            rng.integers(0, 200, requests).tolist(),
            prompts.tolist(),
            rng.random(requests).tolist(),
            strict=True,
        )
    ]
    outputs = np.clip(rng.lognormal(4.8, 0.8, requests), 1, 1000).astype(int)
    return Workload.of("rows", arrivals[:requests], prompts, outputs, blocks=blocks)
