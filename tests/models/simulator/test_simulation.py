"""Whole runs: every request ends once, the same seed gives the same run, time and bytes add up."""

import hashlib
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_worlds import STEPS, check_empty
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import QUIET, cluster_of, columns, watched, workload_of

from kvferry.models.model_catalogue import find_model
from kvferry.models.simulator.oracle import make_policy
from kvferry.models.simulator.run import Run
from kvferry.models.simulator.simulation import MAX_TRIES, simulate
from kvferry.models.simulator.spec import ClusterSpec, PathChange, SLORule, WorkerChange
from kvferry.models.simulator.world import path_of
from kvferry.models.workload.base import Workload

POLICIES = ("kvferry", "always_split", "always_colocated", "coin(0.5)", "oracle")


def run_of(cluster: ClusterSpec, workload: Workload, policy: str = "kvferry", **more: object) -> Run:
    return simulate(cluster, workload, make_policy(policy), steps_of=lambda spec: STEPS, **more)  # type: ignore[arg-type]


WORKER = st.sampled_from(["p0", "d0", "c0"])
CHANGES = st.lists(
    st.one_of(
        st.builds(WorkerChange, st.floats(0.0, 6.0), WORKER, st.booleans()),
        st.builds(PathChange, st.floats(0.0, 6.0), st.floats(0.01, 2.0), st.one_of(st.just(""), WORKER)),
    ),
    max_size=6,
)


@given(
    st.sampled_from(POLICIES),
    st.integers(0, 1000),
    st.sampled_from([1200, 3000, 9000, 200_000]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1.0, 8.0, 60.0]),
    CHANGES,
)
@settings(max_examples=40)
def test_every_request_ends_once_whatever_happens(
    policy: str,
    seed: int,
    room: int,
    local_prefill: bool,
    mixed: bool,
    rate: float,
    changes: list[WorkerChange | PathChange],
) -> None:
    """Workers die and return, links fail, rooms are small, prompts larger than any of them come."""
    each = {"max_total_tokens": room, "reserve_tokens": 64, "mixed_chunk": mixed}
    cluster = cluster_of(each=each)
    engines = tuple(replace(spec, local_prefill=local_prefill) for spec in cluster.engines)
    workload = workload_of(15, seed, rate=rate, prompt=1500, output=60)
    simulation, run, closed = watched(
        replace(cluster, engines=engines), workload, make_policy(policy), seed=seed, changes=changes
    )
    assert sorted(closed) == list(range(len(workload)))
    assert not simulation._trips
    for place, engine in enumerate(simulation.world.engines):
        if engine.alive:
            check_empty(engine)
        assert not simulation.world.sends[place].moving
    assert len(simulation.view.book) == 0
    assert not any(simulation.view.book.moves.values())
    check_columns(run)
    fits = run.prompt_tokens + run.output_tokens <= room
    assert not run.ok[run.prompt_tokens > room].any()
    if not changes and room > 9000:
        assert run.ok[fits].all()


def check_columns(run: Run) -> None:
    ok = run.ok
    for times in (run.ttft_s, run.itl_s, run.e2e_s, run.queue_s):
        assert np.isfinite(times[ok]).all()
        assert (times[ok] >= 0.0).all()
    assert np.isnan(run.e2e_s[~ok]).all()
    assert np.allclose(run.e2e_s[ok], (run.ttft_s + run.itl_s * (run.output_tokens - 1))[ok])
    assert ((run.pre == run.dec) | run.split)[ok].all()
    assert (run.rescued < MAX_TRIES).all()
    assert (run.cached_tokens < run.prompt_tokens).all()
    assert (run.moved_bytes[ok & ~run.split] == 0.0).all()
    assert (run.transfer_s[ok & run.split] > 0.0).all()


@pytest.mark.parametrize("policy", ["kvferry", "coin(0.5)", "oracle"])
def test_the_same_seed_gives_the_same_run_and_another_another(policy: str) -> None:
    workload = workload_of(40)
    changes = (WorkerChange(2.0, "c0", alive=False), WorkerChange(4.0, "c0", alive=True))
    first, same, other = (
        columns(run_of(cluster_of(2, 2, 1), workload, policy, seed=seed, changes=changes))
        for seed in (3, 3, 4)
    )
    assert first == same
    assert first["e2e_s"] != other["e2e_s"]


def digest() -> str:
    """Of runs in which workers die, plans are given up, and a policy draws."""
    cluster = cluster_of(2, 2, 2, each={"max_total_tokens": 20_000})
    changes = tuple(WorkerChange(2.0 + place, f"c{place}", alive=False) for place in range(2))
    workload = workload_of(40, rate=30.0)
    found = [columns(run_of(cluster, workload, name, changes=changes)) for name in ("kvferry", "coin(0.5)")]
    return hashlib.sha256(repr([sorted(each.items()) for each in found]).encode()).hexdigest()


def test_a_run_does_not_depend_on_how_python_hashes() -> None:
    here = Path(__file__).parent
    code = f"import sys; sys.path.insert(0, {str(here)!r}); import test_simulation as t; print(t.digest())"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},  # this process has another, drawn at random
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout.strip() == digest()


def lone(**more: object) -> Workload:
    return Workload.of("lone", [1.0], [5000], [11], **more)  # type: ignore[arg-type]


def prefill_s(prompt: int, chunk: int = 2048) -> float:
    """Of one prompt alone, chunk by chunk."""
    total_s, done = 0.0, 0
    while done < prompt:
        count = min(chunk, prompt - done)
        total_s += STEPS.tokens_s(count) + STEPS.attention_s * count * (done + count / 2)
        done += count
    return total_s


def test_a_lone_colocated_request_takes_the_router_its_chunks_and_its_steps() -> None:
    run = run_of(cluster_of(0, 0, 1, truth=QUIET), lone())
    assert run.ttft_s[0] == pytest.approx(0.002 + prefill_s(5000))
    decode_s = sum(STEPS.decode_s(1) + STEPS.context_s * (5000 + token) for token in range(1, 11))
    assert run.itl_s[0] == pytest.approx(decode_s / 10)
    assert run.e2e_s[0] == pytest.approx(run.ttft_s[0] + decode_s)


def test_a_lone_split_request_also_takes_the_contact_and_the_last_of_its_kv() -> None:
    cluster = cluster_of(1, 1, 0, truth=QUIET)
    run, path = run_of(cluster, lone(), "always_split"), path_of(cluster)
    assert bool(run.split[0])
    computed_s = 0.002 + path.first_contact_s + prefill_s(5000)
    after_s = run.ttft_s[0] - computed_s
    assert after_s == pytest.approx(run.transfer_s[0])
    shape = find_model(cluster.engines[0].model).shape
    assert run.moved_bytes[0] == pytest.approx(5000 * shape.elements_per_token(2) * 2)
    # what was left to move is the last chunk's KV: 904 tokens of 5000
    assert (
        path.alpha_s + path.handoff_s
        < after_s
        < path.alpha_s + path.handoff_s + 0.2 * run.moved_bytes[0] / 41e9
    )


def test_a_slower_path_takes_longer_and_the_same_bytes() -> None:
    cluster = cluster_of(1, 1, 0, truth=QUIET, each={"prefix_cache": False})
    workload = workload_of(12, rate=0.5)
    fast = run_of(cluster, workload, "always_split")
    slow = run_of(cluster, workload, "always_split", changes=(PathChange(0.0, 0.01, "p0"),))
    assert (slow.transfer_s > fast.transfer_s).all()
    assert slow.moved_bytes.tolist() == fast.moved_bytes.tolist()


def test_a_conversation_is_found_in_the_cache_turn_by_turn() -> None:
    prompts = [1100, 2500, 2600, 4100]
    blocks = [list(range(tokens // 512)) for tokens in prompts]
    workload = Workload.of("talk", [0.0, 10.0, 20.0, 30.0], prompts, [20] * 4, blocks=blocks)
    colocated = run_of(cluster_of(0, 0, 1), workload)
    assert colocated.cached_tokens.tolist() == [0, 1024, 2048, 2560]
    split = run_of(cluster_of(1, 1, 0), workload, "always_split")
    assert split.cached_tokens.tolist() == [0, 1024, 2048, 2560]
    # the decode worker holds them too: they are not moved again
    fresh = np.array([1100, 2500 - 1024, 2600 - 2048, 4100 - 2560])
    assert split.moved_bytes / split.moved_bytes[0] == pytest.approx(fresh / 1100)
    each = {"prefix_cache": False}
    assert not run_of(cluster_of(0, 0, 1, each=each), workload).cached_tokens.any()


def test_a_worker_that_dies_loses_its_requests_to_others() -> None:
    cluster, workload = cluster_of(0, 0, 2, truth=QUIET), workload_of(30, rate=20.0)
    run = run_of(cluster, workload, changes=(WorkerChange(0.8, "c0", alive=False),))
    assert run.rescued.any()
    assert run.ok[run.rescued > 0].all()
    assert (run.dec[run.rescued > 0] == 1).all()
    # those whose clients had seen a token cannot be begun again
    assert ((run.arrival_s + run.ttft_s)[~run.ok] <= 0.8).all()
    assert not run.ok.all()
    alone = run_of(cluster_of(0, 0, 1), workload, changes=(WorkerChange(5.0, "c0", alive=False),))
    assert 0 < alone.ok.sum() < 30


def test_a_prefill_worker_may_die_once_its_kv_has_left() -> None:
    workload = Workload.of("w", [0.0], [3000], [400])
    cluster = cluster_of(1, 1, 0, truth=QUIET)
    run = run_of(cluster, workload, "always_split", changes=(WorkerChange(2.0, "p0", alive=False),))
    assert run.ok.all()
    assert not run.rescued.any()
    early = run_of(cluster, workload, "always_split", changes=(WorkerChange(0.1, "p0", alive=False),))
    assert not early.ok.any()


def test_no_requests_no_run() -> None:
    run = run_of(cluster_of(), workload_of(0))
    assert len(run) == 0
    assert run.end_s == 0.0


def test_a_hopeless_run_is_cut_short_and_says_so() -> None:
    workload = workload_of(200, rate=100.0)
    slo = SLORule(0.05, 0.0, 0.01)
    told: list[tuple[int, int]] = []
    whole = run_of(cluster_of(), workload, slo=slo, watch=lambda ended, count: told.append((ended, count)))
    cut = run_of(cluster_of(), workload, slo=slo, lost_limit=0.2)
    assert not whole.aborted
    assert whole.ok.all()
    assert [count for _, count in told] == [200] * 3
    assert cut.aborted
    assert cut.end_s < whole.end_s
    assert whole.attainment(slo) < 0.8
    assert math.isnan(cut.e2e_s[-1])
