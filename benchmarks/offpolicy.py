"""Off-policy estimates against the truth, which a simulator knows.

    python benchmarks/offpolicy.py [--runs 100] [--jobs 2] [--requests 250] [--rate 0.1] [--first-seed 0]

Each run draws a world and a workload. One policy serves it and logs; from its log alone another is judged;
then that one serves the same workload in the same world, which is the truth. The load is light: hardly any
request meets a queue that the other policy would not have left, which is what estimates assume. Printed for
every measure: how often the 95% interval holds the truth, and the root mean square error.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from kvferry.integrations.learning.offpolicy import evaluate_policy
from kvferry.integrations.learning.target import target_of
from kvferry.integrations.log.convert import joined, record_of
from kvferry.integrations.log.picture import Pictures
from kvferry.integrations.log.record import DecisionRecord, Outcome
from kvferry.models.offpolicy.estimators import ESTIMATORS
from kvferry.models.offpolicy.logged import MEASURES
from kvferry.models.simulator.run import Run
from kvferry.models.simulator.simulation import simulate
from kvferry.models.simulator.spec import ClusterSpec, EngineSpec, SLORule
from kvferry.models.workload.base import Workload
from kvferry.models.workload.reader import read
from kvferry.policy.base import Policy, make
from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import Decision
from kvferry.policy.request import Request
from kvferry.policy.worker import Role

COUNTS = ((Role.PREFILL, 1), (Role.DECODE, 1), (Role.COLOCATED, 2))
ENGINES = tuple(
    EngineSpec(f"{role}{n}", role, "Qwen/Qwen3-32B", "h200", 2)
    for role, count in COUNTS
    for n in range(count)
)
CLUSTER = ClusterSpec("1p1d2c", ENGINES, poll_s=2.0)
# Tight: in which mode a request runs decides whether it meets them.
SLO = SLORule(0.02, 5e-5, 0.0108)
TARGET = "length_threshold(1000)"
# A coin, and kvferry exploring as much as it can.
LOGGING = ("coin(0.5)", "kvferry(2048,5,0.001,0.4,2)")


@dataclass
class Logging:
    """Decides as `policy` does, and keeps the record of each request's first decision."""

    policy: Policy

    def __post_init__(self) -> None:
        self.records: dict[str, DecisionRecord] = {}
        self.clusters: dict[str, bytes] = {}
        self._pictures = Pictures(self._tell)

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, request: Request, cluster: Cluster) -> Decision:
        decision = self.policy.decide(request, cluster)
        if request.id not in self.records:
            self.records[request.id] = record_of(
                request,
                decision,
                time_s=cluster.time_s,
                router="simulated",
                stream=True,
                picture=self._pictures.take(request, cluster),
            )
        return decision

    def _tell(self, name: str, line: bytes) -> None:
        self.clusters[name] = line

    def log(self, run: Run) -> list[DecisionRecord]:
        """In the order of arrival, with what came of each."""
        return [joined(self.records[str(row)], _outcome(run, row)) for row in range(len(run))]


@dataclass(frozen=True)
class Judged:
    """One run. `estimates`: measure -> estimator -> (value, low, high)."""

    truth: dict[str, float]
    logged: dict[str, float]
    estimates: dict[str, dict[str, tuple[float, float, float]]]
    effective: float


def judged(seed: int, logging: str, target: str, requests: int, rate_rps: float) -> Judged:
    """RuntimeError when an estimate was refused."""
    workload = read("steady", seed=seed, rate_rps=rate_rps, duration_s=requests / rate_rps)
    recorder = Logging(make(logging))
    run = _run(workload, recorder, seed)
    verdict = evaluate_policy(recorder.log(run), recorder.clusters, target_of(target), seed=seed).verdict
    if verdict.refused:
        raise RuntimeError(f"seed {seed}: {verdict.refused}")
    return Judged(
        truth=_truth(_run(workload, make(target), seed)),
        logged=_truth(run),
        estimates={
            measure: {name: (each.value, each.low, each.high) for name, each in found.items()}
            for measure, found in verdict.estimates.items()
        },
        effective=verdict.effective_sample_size,
    )


def errors(runs: Sequence[Judged], measure: str, estimator: str) -> tuple[float, float]:
    """(share of runs whose interval holds the truth, root mean square error)."""
    truth = np.array([run.truth[measure] for run in runs])
    value, low, high = np.array([run.estimates[measure][estimator] for run in runs]).T
    held = (low <= truth) & (truth <= high)
    return float(held.mean()), float(np.sqrt(((value - truth) ** 2).mean()))


def table(runs: Sequence[Judged]) -> Iterator[str]:
    """Markdown."""
    yield "| measure | truth | logged | " + " | ".join(f"{name} holds / RMSE" for name in ESTIMATORS) + " |"
    yield "|---" * (3 + len(ESTIMATORS)) + "|"
    for measure in MEASURES:
        truth, own = (np.mean([told[measure] for told in told_by]) for told_by in _told(runs))
        cells = [errors(runs, measure, name) for name in ESTIMATORS]
        shown = " | ".join(f"{held:.0%} / {error:.4g}" for held, error in cells)
        yield f"| {measure} | {truth:.4g} | {own:.4g} | {shown} |"


def failures(runs: Sequence[Judged]) -> list[str]:
    """What was promised and is not so."""
    found = []
    for measure in MEASURES:
        (held, error), (_, ips_error) = (errors(runs, measure, name) for name in ("dr", "ips"))
        if held < 0.9:
            found.append(f"the DR interval of {measure} holds the truth in {held:.0%} of the runs only")
        if error >= ips_error:
            found.append(f"DR is no nearer to the true {measure} than IPS: {error:.4g}, {ips_error:.4g}")
    return found


def _told(runs: Sequence[Judged]) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    return [run.truth for run in runs], [run.logged for run in runs]


def _run(workload: Workload, policy: Policy, seed: int) -> Run:
    return simulate(CLUSTER, workload, policy, seed=seed, slo=SLO)


def _outcome(run: Run, row: int) -> Outcome:
    if not run.ok[row]:
        return Outcome(status="failed")
    tokens = int(run.output_tokens[row])
    itl_s = float(run.itl_s[row]) if tokens > 1 else None
    return Outcome(
        ttft_s=float(run.ttft_s[row]), itl_s=itl_s, e2e_s=float(run.e2e_s[row]), output_tokens=tokens
    )


def _truth(run: Run) -> dict[str, float]:
    several = run.ok & (run.output_tokens > 1)
    means = (run.attainment(SLO), run.ttft_s[run.ok].mean(), run.itl_s[several].mean())
    return dict(zip(MEASURES, map(float, means), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--requests", type=int, default=250, help="about so many in each run")
    parser.add_argument("--rate", type=float, default=0.1, help="requests per second")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--logging", nargs="+", default=LOGGING, help="policies that log")
    parser.add_argument("--target", default=TARGET, help="the policy that is judged")
    given = parser.parse_args()
    wrong = []
    for logging in given.logging:
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
            seeds = range(given.first_seed, given.first_seed + given.runs)
            tasks = [
                pool.submit(judged, seed, logging, given.target, given.requests, given.rate) for seed in seeds
            ]
            runs = []
            for done, task in enumerate(tasks, 1):
                runs.append(task.result())
                print(f"\r{done} of {len(tasks)}", end="", file=sys.stderr, flush=True)
        print("\r", end="", file=sys.stderr)
        effective = np.mean([run.effective for run in runs])
        print(f"\n{given.target} from the log of {logging}: {len(runs)} runs of about {given.requests}")
        print(f"requests at {given.rate:g} requests/s, effective sample size {effective:.0f}\n")
        print("\n".join(table(runs)), flush=True)
        wrong += failures(runs)
    print(
        "\n" + ("\n".join(wrong) if wrong else "DR holds the truth in at least 90% and is nearer than IPS.")
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
