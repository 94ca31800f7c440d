"""benchmarks/simulator_speed.py, on a trace of its own."""

import json
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_a_run_tells_its_cost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    speed = import_module("simulator_speed")
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 500 * i, "input_length": 1000, "output_length": 20, "hash_ids": [0, i]}
        for i in range(20)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    whole = speed.one(trace, "8c", "always_colocated", 0)
    part = speed.one(trace, "8c", "always_colocated", 5)
    assert (whole["requests"], part["requests"]) == (20, 5)
    assert whole["engine_steps"] >= 20 * 20
    assert whole["us_per_request"] > 0
    assert whole["peak_mb"] > 10


def test_commas_inside_parentheses_part_no_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    speed = import_module("simulator_speed")
    assert speed._policies("coin(0.5), a(1,2),kvferry") == ["coin(0.5)", "a(1,2)", "kvferry"]
