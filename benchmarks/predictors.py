"""What a learned correction costs per decision and is worth, beside an XGBoost predictor in the same process.

    python benchmarks/predictors.py [--requests 20000 | --from LOG ...]

Rows come from a simulated cluster of 8 workers, or from decision logs. On the oldest 70% a network, a forest
(`kvferry.models.training`) and, per target, XGBoost with 200 trees of depth 6 and a quantile loss are fitted
to the same features; all are calibrated alike on the next 15%, and judged on the newest 15%. Then each
corrects TTFT and ITL of 144 plans (8 prefill x 8 decode x 2 transports + 16 colocated), and the policy
decides with each of ours. XGBoost is not a dependency: pip install xgboost.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from decide import cluster, cpu, request
from residuals import KINDS, residual
from simulated_rows import simulated_rows

from kvferry.integrations.learning.progress import progress
from kvferry.models.training import conformal
from kvferry.models.training.fit import SHARES, fit
from kvferry.models.training.rows import Rows
from kvferry.models.training.scores import scores
from kvferry.policy import base
from kvferry.policy.correction import QUANTILES, TARGETS
from kvferry.policy.features import features
from kvferry.policy.predict import predict

TREES, DEPTH = 200, 6
FAST = ("ttft", "itl")
ROUNDS = 10
Table = dict[str, dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="to simulate")
    parser.add_argument("--from", dest="sources", nargs="*", help="decision logs instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    xgboost = _xgboost()
    rows = _read(given.sources) if given.sources else simulated_rows(given.requests, given.seed)
    with progress("training") as report:
        artifact = fit(rows, seed=given.seed, progress=report)
    metrics = artifact.manifest.metrics
    train, calibrate, test = rows.of_time_split(SHARES)
    boosters = {target: _boosted(xgboost, train, target) for target in metrics}
    accuracy: dict[str, Table] = {}
    for target, found in metrics.items():
        accuracy[target] = {
            kind: {name: found[f"{kind}_{name}"] for name in ("pinball", "median_ape", "coverage_p90")}
            for kind in ("structured", *KINDS)
        }
        accuracy[target]["xgboost"] = _judged(boosters[target], target, calibrate, test)
    times = _times([boosters[target] for target in FAST if target in boosters])
    result = {"rows": len(rows), "taken": artifact.manifest.kind, "accuracy": accuracy, "times_us": times}
    if given.json:
        print(json.dumps({**result, "cpu": cpu()}))
        return
    print(f"{len(rows)} rows; {artifact.manifest.kind} is what kvferry train would export\n")
    print(f"{'target':10} {'predictor':11} {'pinball':>8} {'median error':>13} {'under p90':>10}")
    for target, table in accuracy.items():
        for kind, each in table.items():
            error, covered = f"{each['median_ape']:.1%}", f"{each['coverage_p90']:.1%}"
            print(f"{target:10} {kind:11} {each['pinball']:8.4f} {error:>13} {covered:>10}")
    print(f"\n{'us on ' + cpu()[:30]:36} {'p5':>8} {'p50':>8} {'p99':>8}")
    for name, each in times.items():
        print(f"{name:36} {each['p5']:8.1f} {each['p50']:8.1f} {each['p99']:8.1f}")


def _xgboost() -> Any:
    try:
        import xgboost
    except ImportError as error:
        raise SystemExit("predictors.py needs xgboost: pip install xgboost") from error
    return xgboost


def _read(sources: list[str]) -> Rows:
    from kvferry.integrations.learning.sources import read_rows
    from kvferry.integrations.learning.tally import Tally

    return read_rows(sources, Tally()).in_time_order()


def _boosted(xgboost: Any, train: Rows, target: str) -> list[Any]:
    """A booster per quantile."""
    y = train.targets[:, TARGETS.index(target)]
    known = np.isfinite(y)
    data = xgboost.QuantileDMatrix(train.features[known], y[known], nthread=1)
    return [
        xgboost.train(
            {
                "objective": "reg:quantileerror",
                "quantile_alpha": quantile,
                "max_depth": DEPTH,
                "eta": 0.1,
                "tree_method": "hist",
                "nthread": 1,
            },
            data,
            TREES,
        )
        for quantile in QUANTILES
    ]


def _judged(boosters: list[Any], target: str, calibrate: Rows, test: Rows) -> dict[str, float]:
    """Calibrated as ours are."""
    place = TARGETS.index(target)
    before, after = (
        np.maximum.accumulate([each.inplace_predict(rows.features) for each in boosters], axis=0)
        for rows in (calibrate, test)
    )
    modes = np.array(conformal.offsets(calibrate.targets[:, place], before, calibrate.split), np.float32)
    said = np.maximum.accumulate(after + modes[test.split.astype(int)].T, axis=0)
    found = scores(test.targets[:, place], said)
    return {name: found[name] for name in ("pinball", "median_ape", "coverage_p90")}


def _times(boosters: list[list[Any]]) -> Table:
    rng = np.random.default_rng(0)
    world = cluster(rng)
    requests = [request(rng, i, world) for i in range(200)]
    shown = [features(each, world, predict(each, world)) for each in requests]
    transposed = [np.ascontiguousarray(each.T, np.float32) for each in shown]
    for each in boosters:
        each[0].set_param({"nthread": 1})
    correctors = {kind: residual(kind) for kind in ("none", *KINDS)}
    policy = base.make("kvferry")
    found: Table = {}
    for kind in KINDS:
        corrector = correctors[kind]
        assert corrector is not None
        found[f"correct {len(shown[0].T)} plans, {kind}"] = _timed(corrector.correct, shown)
    if boosters:
        name = f"correct {len(shown[0].T)} plans, xgboost"
        found[name] = _timed(lambda x: [each[0].inplace_predict(x) for each in boosters], transposed)
    for kind, corrector in correctors.items():
        decided = replace(world, corrector=corrector)
        found[f"decide, residual {kind}"] = _timed(lambda each, to=decided: policy.decide(each, to), requests)
    return found


def _timed(call: Callable[[Any], Any], items: list[Any]) -> dict[str, float]:
    spent = []
    for _ in range(ROUNDS):
        for each in items:
            begun_ns = time.perf_counter_ns()
            call(each)
            spent.append((time.perf_counter_ns() - begun_ns) / 1e3)
    return {f"p{q}": round(float(np.percentile(spent, q)), 1) for q in (5, 50, 99)}


if __name__ == "__main__":
    main()
