"""benchmarks/policies.py and upper_bound.py, on a grid of their own."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvferry.models.simulator.source import Source
from kvferry.models.simulator.spec import ClusterSpec, EngineSpec, SLORule
from kvferry.models.simulator.world import catalogue_steps
from kvferry.models.workload.base import Workload
from kvferry.policy.worker import Role

ROOT = Path(__file__).parents[3]
GRID = """
name = "tiny"
duration_s = 4
seeds = [0]
policies = ["kvferry"]
clusters = ["4p4d", "8c"]

[goodput]
start_rps = 10
step = 3
leap = 1
patience = 1
stop_rps = 95
min_requests = 20

[[workload]]
name = "even"
file = "steady"

[[path]]
name = "fast"
class = "ib_ndr400_gdr_per_nic"

[[slo]]
name = "50 ms"
itl_ms = 50

[[slo]]
name = "12 ms"
itl_ms = 12
"""


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of benchmarks/."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield import_module
    for name in [name for name in sys.modules if name.split(".")[0] in ("policies", "policies_parts")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def contest(parts: Any, tmp_path: Path) -> Any:
    file = tmp_path / "tiny.toml"
    file.write_text(GRID)
    whole = parts("policies").read(str(file), tmp_path, "", None, ())
    tuned = {"coin": ("coin(0.4)", "coin(0.8)")}
    return replace(whole, tuned=tuned, untuned=("always_split", "least_load"), chunks=(512, 2048))


def test_one_command_tunes_reports_and_goes_on_where_it_was(
    parts: Any, contest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies, work = parts("policies"), parts("policies_parts.work")

    def here(tasks: Any, jobs: int, run: Any) -> Any:
        assert jobs == 2
        yield from ((task, run(task)) for task in tasks)

    monkeypatch.setattr(work, "run_processes", here)
    text = policies.run(contest, 2, tmp_path / "out")
    told = (tmp_path / "out" / "policies.json").read_bytes()
    whole = json.loads(told)
    assert [cell["slo"] for cell in whole["cells"]] == ["12 ms", "50 ms"]
    for cell in whole["cells"]:
        assert set(cell["policies"]) >= {"kvferry", "always_split", "least_load"}
        for metric in ("plain", "fair"):
            best = cell[metric]["fixed"]
            rates = {name: seen[metric] for name, seen in cell["policies"].items() if name != "least_load"}
            assert best["goodput_rps"] == rates[best["policy"]]
            assert cell[metric]["load_aware"]["policy"] == "least_load"
            assert cell[metric]["challenger"]["policy"] in ("chunk 512", "chunk 2048")
    strict, loose = (cell["plain"]["kvferry"] for cell in whole["cells"])
    assert strict <= loose
    assert loose > 0
    assert "| over the best fixed rule of each cell | >= 1.20 |" in text

    def nothing(tasks: Any, jobs: int, run: Any) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setattr(work, "run_processes", nothing)
    assert policies.run(contest, 2, tmp_path / "out") == text
    assert (tmp_path / "out" / "policies.json").read_bytes() == told
    with pytest.raises(AssertionError, match="computed again"):
        policies.run(replace(contest, tag="new"), 2, tmp_path / "out")


def test_one_run_of_a_rule_that_sees_no_objective_serves_all(parts: Any, contest: Any) -> None:
    run_task = parts("policies_parts.task").run_task
    scenario = contest.scenarios[0]
    (both,), row = contest.runs(scenario, "coin(0.4)", 1)
    assert (row, len(both.slos)) == (1, 2)
    assert contest.runs(scenario, "coin(0.4)", 0)[0] == [both]
    together = run_task(both)["goodput"]
    apart = [run_task(replace(both, slos=(slo,)))["goodput"][0] for slo in both.slos]
    assert together == apart
    (own,), row = contest.runs(scenario, "kvferry", 1)
    assert (row, own.slos) == (0, (SLORule(itl_s=0.05),))


def test_what_is_tuned_on_is_not_reported(parts: Any) -> None:
    contest = parts("policies_parts.contest")
    for source in (Source("t", (("t.jsonl", 1.0),)), Source("t", (("t.jsonl", 1.0),), start_share=0.5)):
        tuning = contest.tuning_part(source)
        assert (tuning.start_share, tuning.end_share) == (0.0, 0.5)
        report = [contest.report_part(source, number, 3) for number in range(3)]
        assert [part.start_share for part in report] == [0.5, 0.625, 0.75]
        assert {part.end_share for part in report} == {1.0}


def test_settings_are_chosen_by_goodput_and_then_by_how_near_the_next_rate_was(
    parts: Any, contest: Any
) -> None:
    tuning = parts("policies_parts.tuning")
    merits = {"coin(0.4)": (30.0, 0.7), "coin(0.8)": (30.0, 0.8)}
    found = {}
    for task in tuning.tuning_tasks(contest):
        chunk = task.cluster.engines[0].chunk_tokens
        rate, near = merits.get(task.policy, (10.0 if chunk == 512 else 20.0, 0.0))
        row = [[near, near]] * len(task.slos)
        found[task.key] = {"goodput": [[rate, rate]] * len(task.slos), "points": [[90.0, row]]}
    choice = tuning.choose(contest, found)
    assert set(choice.settings.values()) == {"coin(0.8)"}
    assert set(choice.chunks.values()) == {2048}
    assert choice.single["plain"] in merits


def test_cells_that_lose_come_first(parts: Any) -> None:
    table = parts("policies_parts.table")

    def cell(name: str, ratio: float, fair: float) -> dict[str, Any]:
        own = {"kvferry": 10.0, "fixed": {"policy": "coin(0.5)", "goodput_rps": 10.0, "ratio": ratio}}
        return {
            **{"workload": name, "path": "p", "pool": "q", "slo": "50 ms"},
            "policies": {"kvferry": {"split_share": 0.5}},
            "plain": own,
            "fair": {**own, "fixed": {**own["fixed"], "ratio": fair}},
        }

    means = {
        **dict.fromkeys(("over_best_fixed", "over_best_single", "least_over_best_fixed", "stale_cost"), 1.0),
        **{"cells_under_0.97": 2, "over_best_load_aware": None, "best_single": "coin(0.5)"},
        **{"over_challenger": {}, "over_each": {"coin(0.5)": 1.0, "kvferry": 1.0}},
    }
    cells = [cell("good", 1.2, 0.98), cell("bad", 0.9, 1.0), cell("worse", 1.1, 0.5)]
    text = table.markdown(
        {
            **{"grid": "g", "seeds": [0], "rate_step": 1.07, "durations_s": {"good": 60}},
            **{"cells": cells, "means": {"plain": means, "fair": means}},
        }
    )
    places = [text.index(f"| {name} |") for name in ("worse", "bad", "good")]
    assert places == sorted(places)
    assert text.index("| bad |") < text.index("### The other cells") < text.index("| good |")


def fluid(parts: Any) -> ModuleType:
    pytest.importorskip("scipy", reason="the fluid bound needs scipy")
    module: ModuleType = parts("policies_parts.fluid")
    return module


def pool(prefill: int, decode: int, colocated: int) -> ClusterSpec:
    counts = {Role.PREFILL: prefill, Role.DECODE: decode, Role.COLOCATED: colocated}
    engines = [
        EngineSpec(f"{role}{number}", role, "Qwen/Qwen3-32B", "h200", 2, max_total_tokens=750_000)
        for role, count in counts.items()
        for number in range(count)
    ]
    return ClusterSpec("test", tuple(engines))


def equal(prompt: int, output: int, count: int = 32) -> Workload:
    return Workload.of("equal", [float(i) for i in range(count)], [prompt] * count, [output] * count)


def test_the_bound_is_what_one_prefill_worker_can_compute(parts: Any) -> None:
    most_rps, classes = fluid(parts).most_rps, parts("policies_parts.classes").classes_of(equal(2048, 2))
    times = catalogue_steps(pool(1, 1, 0).engines[0])
    alone_s = times.tokens_s(2048) + times.attention_s * 2048 * 1024
    assert most_rps(pool(1, 1, 0), classes, 0.05) == pytest.approx(1 / alone_s, rel=1e-3)
    assert most_rps(pool(3, 1, 0), classes, 0.05) == pytest.approx(3 / alone_s, rel=1e-3)
    assert most_rps(pool(1, 1, 0), classes, 0.05, lost=0.1) == pytest.approx(1 / alone_s / 0.9, rel=1e-3)


def test_the_bound_is_what_one_decode_worker_can_decode_in_time(parts: Any) -> None:
    most_rps, classes = fluid(parts).most_rps, parts("policies_parts.classes").classes_of(equal(512, 1001))
    times = catalogue_steps(pool(1, 1, 0).engines[0])
    held = 512 + 1001 / 2
    rates = [
        batch / step_s / 1000
        for batch in range(1, 257)
        if (step_s := times.decode_s(batch) + times.context_s * batch * held) <= 0.014
    ]
    assert most_rps(pool(1, 1, 0), classes, 0.014) == pytest.approx(max(rates), rel=0.03)


def test_colocated_workers_pay_for_prefill_with_slow_tokens(parts: Any) -> None:
    most_rps, classes = fluid(parts).most_rps, parts("policies_parts.classes").classes_of(equal(1024, 200))
    colocated, split = (
        [most_rps(cluster, classes, itl_s) for itl_s in (0.02, 0.05)]
        for cluster in (pool(0, 0, 2), pool(1, 1, 0))
    )
    assert colocated[0] < 0.8 * colocated[1]
    assert split[0] > 0.9 * split[1]


def test_blocks_that_came_before_are_not_computed_again(parts: Any) -> None:
    workload = Workload.of(
        "w", [0.0, 1.0, 2.0], [1024, 1500, 1024], [2, 2, 2], blocks=[[1, 2], [1, 3], [1, 2]], block_tokens=512
    )
    cached = parts("policies_parts.classes").ideal_cached(workload)
    assert cached.tolist() == [0, 512, 1023]
