"""Figures of runs made up by hand, and what several seeds say together."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.simulator.metrics import KINDS, NAMES, figures, pool, summary, timeline, with_regret
from kvferry.models.simulator.run import Run
from kvferry.models.simulator.spec import SLORule
from kvferry.policy.worker import Role

CONTRACT = [
    "goodput_rps",
    "slo_attainment",
    "ttft_p50_s",
    "ttft_p99_s",
    "itl_p50_s",
    "itl_p99_s",
    "e2e_p50_s",
    "split_share",
    "moved_bytes",
    "regret_mean",
]
SLO = SLORule(ttft_s=1.0, ttft_s_per_token=0.0, itl_s=0.05)
ROLES = {"p0": Role.PREFILL, "d0": Role.DECODE, "c0": Role.COLOCATED}


def run_of(ttft_s: list[float], **columns: object) -> Run:
    """Requests that all went from p0 to d0 and met the ITL objective, unless `columns` say otherwise."""
    count = len(ttft_s)
    ttft = np.array(ttft_s)
    given_columns = {
        "policy": "made_up",
        "seed": 0,
        "workers": ("p0", "d0", "c0"),
        "arrival_s": np.arange(count, dtype=float),
        "prompt_tokens": np.full(count, 100),
        "output_tokens": np.full(count, 11),
        "ttft_s": ttft,
        "itl_s": np.full(count, 0.01),
        "e2e_s": ttft + 0.1,
        "ok": np.isfinite(ttft),
        "split": np.ones(count, dtype=bool),
        "pre": np.zeros(count, dtype=int),
        "dec": np.ones(count, dtype=int),
        "rescued": np.zeros(count, dtype=int),
        "cached_tokens": np.full(count, 25),
        "moved_bytes": np.full(count, 1000.0),
        "queue_s": np.zeros(count),
        "transfer_s": np.full(count, 0.2),
        "predicted_ttft_s": ttft * 1.5,
        "predicted_itl_s": np.full(count, 0.01),
        "predicted_transfer_s": np.full(count, 0.1),
        "retractions": 3,
        "engine_steps": 1,
        "events": 1,
        "end_s": 9.0,
    }
    return Run(**{**given_columns, **columns})  # type: ignore[arg-type]


def test_the_contract_comes_first_and_whole() -> None:
    assert list(NAMES[: len(CONTRACT)]) == CONTRACT
    assert set(figures(run_of([0.1]), SLO)) == set(NAMES)
    assert set(CONTRACT) < set(summary([run_of([0.1])], SLO))


def test_figures_of_a_run() -> None:
    found = figures(run_of([0.1, 0.2, 0.3, 2.0], split=np.array([True, True, True, False])), SLO)
    assert found["slo_attainment"] == 0.75
    assert found["loss_mean"] == 0.25
    assert found["ttft_p50_s"] == pytest.approx(0.25)
    assert found["e2e_p50_s"] == pytest.approx(0.35)
    assert found["split_share"] == 0.75
    assert found["moved_bytes"] == 4000.0
    assert found["ttft_error_median"] == pytest.approx(0.5)
    assert found["itl_error_median"] == 0.0
    assert found["transfer_error_median"] == pytest.approx(0.5)
    assert found["cached_share"] == 0.25
    assert found["retractions"] == 3
    assert found["offered_rps"] == pytest.approx(4 / 3)
    assert found["goodput_rps"] is None
    assert found["regret_mean"] is None


def test_requests_that_failed_count_as_lost_and_have_no_times() -> None:
    found = figures(run_of([0.1, math.nan], rescued=np.array([0, 2]), dec=np.array([1, -1])), SLO)
    assert found["failed"] == 1
    assert found["rescued"] == 1
    assert found["slo_attainment"] == 0.5
    assert found["ttft_p99_s"] == 0.1
    assert found["split_share"] == 1.0


def test_one_token_has_no_itl() -> None:
    found = figures(run_of([0.1, 0.1], output_tokens=np.array([1, 1]), itl_s=np.zeros(2)), SLO)
    assert found["itl_p50_s"] is None
    assert found["itl_error_median"] is None


def test_class_fair_attainment_is_of_the_worst_quartile() -> None:
    lengths = np.arange(1, 101)
    late = np.where(lengths > 90, 5.0, 0.1)
    found = figures(run_of(late.tolist(), prompt_tokens=lengths), SLO)
    assert found["slo_attainment"] == 0.9
    assert found["fair_attainment"] == pytest.approx(15 / 25)


def test_nothing_ran() -> None:
    found = figures(run_of([]), SLO)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["requests"] == 0
    assert found["ttft_p50_s"] is None


def test_regret_is_against_the_oracle_on_the_same_requests() -> None:
    own, best = figures(run_of([0.1, 5.0, 5.0, 5.0]), SLO), figures(run_of([0.1, 0.1, 0.1, 5.0]), SLO)
    assert with_regret(own, best)["regret_mean"] == 0.5
    assert with_regret(own, None)["regret_mean"] is None
    both = summary([run_of([0.1, 5.0]), run_of([5.0, 5.0])], SLO, [run_of([0.1, 0.1]), run_of([0.1, 5.0])])
    assert both["regret_mean"] == 0.5


def test_seeds_are_averaged_and_resampled() -> None:
    runs = [run_of([ttft_s, 0.5]) for ttft_s in (0.1, 0.1, 5.0, 5.0)]
    pooled = summary(runs, SLO, seed=7)
    low, high = pooled["intervals"]["slo_attainment"]
    assert pooled["slo_attainment"] == 0.75
    assert pooled["seeds"] == 4
    assert 0.5 <= low < 0.75 < high <= 1.0
    assert pooled == summary(runs, SLO, seed=7)
    assert summary(runs[:1], SLO)["intervals"] == {}


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.integers(0, 99))
def test_an_interval_holds_its_mean(values: list[float], seed: int) -> None:
    rows = [{**figures(run_of([0.1]), SLO), "slo_attainment": value} for value in values]
    pooled = pool(rows, seed)
    low, high = pooled["intervals"]["slo_attainment"]
    assert min(values) - 1e-12 <= low <= high <= max(values) + 1e-12
    assert pooled["slo_attainment"] == pytest.approx(np.mean(values))


def test_a_figure_that_a_seed_lacks_is_averaged_over_the_others() -> None:
    rows = [figures(run_of([0.1]), SLO), figures(run_of([math.nan]), SLO)]
    assert pool(rows)["ttft_p50_s"] == pytest.approx(0.1)
    assert "ttft_p50_s" not in pool(rows)["intervals"]


def test_timeline_counts_every_request_once_by_where_it_ended() -> None:
    run = run_of(
        [0.1, 0.1, 0.1, math.nan],
        split=np.array([True, False, False, False]),
        pre=np.array([0, 1, 2, -1]),
        dec=np.array([1, 1, 2, -1]),
    )
    found = timeline(run, ROLES, duration_s=4.0, bins=4)
    assert found["split"] == [1, 0, 0, 0]
    assert found["local_prefill"] == [0, 1, 0, 0]
    assert found["colocated"] == [0, 0, 1, 0]
    assert found["unplaced"] == [0, 0, 0, 1]
    assert found["edges_s"] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert sum(sum(found[kind]) for kind in KINDS) == len(run)
