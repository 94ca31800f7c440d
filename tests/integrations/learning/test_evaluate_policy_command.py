"""`kvferry evaluate --policy` as it is called, on the log of a simulated run."""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from kvferry.integrations.log.codec import write_record
from kvferry.policy.base import make

Logged = Callable[[str, int], Path]


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> Logged:  # type: ignore[no-untyped-def]
    """A policy and a number of requests -> their log."""
    folder = str(Path(__file__).parents[3] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        bench = import_module("offpolicy")
    finally:
        sys.path.remove(folder)

    def log(policy: str, requests: int) -> Path:
        workload = bench.read("steady", seed=1, rate_rps=0.1, duration_s=requests / 0.1)
        recorder = bench.Logging(make(policy))
        run = bench.simulate(bench.CLUSTER, workload, recorder, seed=1, slo=bench.SLO)
        file: Path = tmp_path_factory.mktemp("log") / "log.jsonl"
        lines = [*recorder.clusters.values(), *(write_record(record) for record in recorder.log(run))]
        file.write_bytes(b"\n".join(lines) + b"\n")
        return file

    return log


@pytest.fixture(scope="module")
def coin(logged: Logged) -> Path:
    return logged("coin(0.5)", 160)


def test_what_a_policy_would_have_got_stands_below_how_good_predictions_were(call, coin) -> None:  # type: ignore[no-untyped-def]
    code, shown, _ = call("evaluate", "--from", str(coin), "--policy", "length_threshold(1000)")
    assert code == 0
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.index("of what the live version said") < shown.index("length_threshold(1000) (structured)")
    for word in ("as logged", "IPS", "SNIPS", "doubly robust", "in SLO", "taken for granted"):
        assert word in shown


def test_in_json_it_is_under_policy_with_intervals(call, coin) -> None:  # type: ignore[no-untyped-def]
    words = ["evaluate", "--from", str(coin), "--policy", "length_threshold(1000)", "--json"]
    code, shown, _ = call(*words)
    told = json.loads(shown)
    assert code == 0
    assert told["records"]["bad_lines"] == 0
    assert told["terms"]["ttft"]["n"] == told["rows"]
    for name in ("ips", "snips", "dr"):
        found = told["policy"][name]
        assert found["low"] <= found["value"] <= found["high"]
    assert told["policy"]["effective_sample_size"] > 50
    assert call(*words)[1] == shown
    assert json.loads(call("evaluate", "--from", str(coin), "--json")[1])["policy"] is None


def test_the_same_log_twice_says_no_more_than_once(call, coin) -> None:  # type: ignore[no-untyped-def]
    words = ["evaluate", "--policy", "always_split", "--json", "--from", str(coin)]
    once = json.loads(call(*words)[1])["policy"]
    twice = json.loads(call(*words, "--from", str(coin))[1])["policy"]
    assert once == twice


def test_without_overlap_there_is_a_sentence_and_no_estimate(call, logged) -> None:  # type: ignore[no-untyped-def]
    log = str(logged("always_colocated", 60))
    code, shown, _ = call("evaluate", "--from", log, "--policy", "always_split")
    assert code == 0
    assert "NO ESTIMATE of always_split" in shown
    assert "doubly robust" not in shown
    told = json.loads(call("evaluate", "--from", log, "--policy", "always_split", "--json")[1])["policy"]
    assert told["refused"]
    assert (told["ips"], told["snips"], told["dr"]) == (None, None, None)


@pytest.mark.parametrize("name", ["best", ""])
def test_a_policy_nobody_knows_is_a_usage_error(call, coin, name) -> None:  # type: ignore[no-untyped-def]
    code, _, err = call("evaluate", "--from", str(coin), "--policy", name)
    assert code == 2
    assert f"unknown policy '{name}'" in err
