"""Policies judged on logs of simulated runs, where the truth is known."""

import json
import math
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest

from kvferry.integrations.learning.model_source import ModelError
from kvferry.integrations.learning.offpolicy import collect, evaluate_policy
from kvferry.integrations.learning.policy_table import policy_lines
from kvferry.integrations.learning.target import Target, target_of
from kvferry.integrations.log.codec import read_record, write_record
from kvferry.integrations.log.record import NEVER_S, Alternative, Outcome, Propensity, Term, Terms
from kvferry.models.offpolicy.logged import MEASURES
from kvferry.policy.base import make

TARGET = "length_threshold(1000)"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    folder = str(Path(__file__).parents[3] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        return import_module("offpolicy")
    finally:
        sys.path.remove(folder)


def log_of(
    bench: ModuleType, policy: str, seed: int = 5, requests: int = 160
) -> tuple[list, dict[str, bytes]]:
    """Records as they would be read from a file, and their cluster tables."""
    workload = bench.read("steady", seed=seed, rate_rps=0.1, duration_s=requests / 0.1)
    recorder = bench.Logging(make(policy))
    run = bench.simulate(bench.CLUSTER, workload, recorder, seed=seed, slo=bench.SLO)
    return [read_record(write_record(record)) for record in recorder.log(run)], recorder.clusters


@pytest.fixture(scope="module")
def coin(bench: ModuleType) -> tuple[list, dict[str, bytes]]:
    return log_of(bench, "coin(0.5)")


def test_the_doubly_robust_estimate_is_near_the_truth_and_nearer_than_ips(bench: ModuleType) -> None:
    runs = [bench.judged(seed, "coin(0.5)", TARGET, 160, 0.1) for seed in range(4)]
    for measure in MEASURES:
        held, error = bench.errors(runs, measure, "dr")
        assert held >= 3 / 4, (measure, held)
        assert error < bench.errors(runs, measure, "ips")[1]
    # and the two policies differ, or it would be no feat
    apart = [abs(run.truth["slo_attainment"] - run.logged["slo_attainment"]) for run in runs]
    assert np.mean(apart) > 0.02


@pytest.mark.parametrize("name", ["coin(0.5)", "kvferry(2048,5,0.001,0.3,2)", "random_by_workers"])
def test_the_policy_that_logged_is_found_to_get_what_it_got(bench: ModuleType, name: str) -> None:
    records, clusters = log_of(bench, name)
    logged, left_out = collect(records, clusters, target_of(name))
    assert not left_out
    np.testing.assert_allclose(logged.weights, 1.0, rtol=1e-9)
    told = evaluate_policy(records, clusters, target_of(name)).told()
    assert told["effective_sample_size"] == pytest.approx(len(records), abs=0.1)
    assert told["ips"]["value"] == pytest.approx(told["logged"]["slo_attainment"])
    assert told["ttft_s"]["snips"]["value"] == pytest.approx(told["logged"]["ttft_s"])


@pytest.mark.parametrize("drawn", ["split:p2>d@nixl", "split:p1>d@nixl", "colocated:c"])
def test_what_a_mode_promises_does_not_depend_on_which_plan_was_drawn(
    coin: tuple[list, dict[str, bytes]], drawn: str
) -> None:
    def terms(ttft_s: float) -> Terms:
        return Terms(ttft_s=Term(ttft_s, ttft_s), itl_s=Term(0.01, 0.01))

    plans = {"split:p1>d@nixl": (1.0, terms(0.1)), "split:p2>d@nixl": (2.0, terms(0.4)),
             "colocated:c": (1.5, terms(0.2))}  # fmt: skip
    (record, *_), clusters = coin
    score, told = plans.pop(drawn)
    mode = drawn.partition(":")[0]
    record = msgspec.structs.replace(
        record,
        chosen=msgspec.structs.replace(record.chosen, plan=drawn, mode=mode, score=score),
        terms=told,
        alternatives=tuple(
            Alternative(plan, score=score, terms=terms) for plan, (score, terms) in plans.items()
        ),
    )
    logged, _ = collect([record], clusters, target_of(TARGET))
    assert logged.predicted[:, 0, 0].tolist() == [0.2, 0.1]


@pytest.mark.parametrize("name", ["random_by_workers", "always_split"])
def test_drawing_workers_at_random_biases_nothing(bench: ModuleType, name: str) -> None:
    told = evaluate_policy(*log_of(bench, "random_by_workers", requests=600), target_of(name)).told()
    found = told["ttft_s"]
    assert found["dr"]["value"] == pytest.approx(found["snips"]["value"], rel=0.02)


def test_what_is_told_is_json_in_the_words_of_the_design(coin: tuple[list, dict[str, bytes]]) -> None:
    done: list[int] = []
    told = evaluate_policy(*coin, target_of(TARGET), seed=3, progress=done.append).told()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["name"] == TARGET
    assert told["model_version"] == "structured"
    assert told["refused"] is None
    for estimates in (told, told["ttft_s"], told["itl_s"]):
        for name in ("ips", "snips", "dr"):
            assert estimates[name]["low"] <= estimates[name]["value"] <= estimates[name]["high"]
    assert 0.3 < told["split_share"] < 0.7
    assert any("mode" in each for each in told["assumptions"])
    assert told == evaluate_policy(*coin, target_of(TARGET), seed=3).told()


def test_a_model_that_is_judged_by_what_it_was_made_from_is_told_of(
    coin: tuple[list, dict[str, bytes]],
) -> None:
    records, clusters = coin
    until_s = sorted(record.time for record in records)[99]
    result = evaluate_policy(records, clusters, Target(make(TARGET), trained_until_s=until_s))
    assert result.told()["trained_on"] == 100
    assert "NOT held out: 100 of" in " ".join(policy_lines(result))
    assert "NOT held out" not in " ".join(policy_lines(evaluate_policy(*coin, target_of(TARGET))))


def test_a_log_without_choices_is_refused_in_words(bench: ModuleType) -> None:
    told = evaluate_policy(*log_of(bench, "always_colocated", requests=60), target_of("always_split")).told()
    assert "which the log never did" in told["refused"]
    assert told["dr"] is told["ips"] is told["ttft_s"] is None
    json.dumps(told, allow_nan=False)


def test_records_that_say_nothing_are_counted_by_reason(coin: tuple[list, dict[str, bytes]]) -> None:
    records, clusters = coin

    def but(**changes: Any) -> Any:
        return msgspec.structs.replace(records[0], **changes)

    odd = [
        but(mode="shadow"),
        but(outcome=None),
        but(outcome=Outcome(status="cancelled")),
        but(picture=None),
        but(picture=msgspec.structs.replace(records[0].picture, cluster="gone")),
        *(but(propensity=Propensity(mode=chance)) for chance in (0.0, -0.3, 1.5, math.nan)),
        but(outcome=Outcome(status="failed", error="it died")),
    ]
    logged, left_out = collect([*records[1:], *odd], clusters, target_of(TARGET))
    assert left_out == {
        "shadow": 1,
        "no_outcome": 1,
        "cancelled": 1,
        "no_picture": 1,
        "picture_unreadable": 1,
        "no_chance_of_what_was_done": 4,
    }
    assert len(logged) == len(records)
    assert logged.values["slo_attainment"][-1] == 0.0
    assert np.isnan(logged.values["ttft_s"][-1])


@pytest.mark.parametrize("name", ["no_such_policy", "coin(2)", "m-000000000000"])
def test_a_target_that_is_none_is_named(name: str) -> None:
    with pytest.raises(ModelError, match=r"unknown policy|share|store"):
        target_of(name)


def test_what_was_predicted_to_never_end_is_no_prediction(coin: tuple[list, dict[str, bytes]]) -> None:
    records, clusters = coin

    def never(terms: Any) -> Any:
        return msgspec.structs.replace(terms, ttft_s=Term(NEVER_S, NEVER_S))

    hopeless = [
        msgspec.structs.replace(
            record,
            alternatives=tuple(
                msgspec.structs.replace(other, terms=never(other.terms)) for other in record.alternatives
            ),
        )
        if place % 40 == 0
        else record
        for place, record in enumerate(records)
    ]
    told = evaluate_policy(hopeless, clusters, target_of(TARGET)).told()
    assert 0.0 < told["unknown_share"] < 0.05
    assert told["ttft_s"]["dr"]["value"] < 100.0
