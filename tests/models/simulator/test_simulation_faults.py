"""Runs in which something goes wrong, or nothing happens for a long time."""

import random
from dataclasses import replace

import numpy as np
import pytest
from engine_worlds import STEPS
from small_worlds import QUIET, cluster_of, worker, workload_of

from kvferry.models.simulator.oracle import make_policy
from kvferry.models.simulator.run import Run
from kvferry.models.simulator.simulation import Simulation, simulate
from kvferry.models.simulator.spec import ClusterSpec, PathChange, SLORule, WorkerChange
from kvferry.models.simulator.world import path_of
from kvferry.models.workload.base import Workload
from kvferry.policy.worker import Role


def run_of(cluster: ClusterSpec, workload: Workload, policy: str = "kvferry", **more: object) -> Run:
    return simulate(cluster, workload, make_policy(policy), steps_of=lambda spec: STEPS, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(6))
def test_deaths_among_prompts_that_fit_nowhere_end_every_request(seed: int) -> None:
    # giving one request up frees what another waited for, in the midst of the same death
    rng = random.Random(seed)
    cluster = cluster_of(4, 4, 0, each={"max_total_tokens": 40_000})
    count = 150
    workload = Workload.of(
        "w",
        sorted(rng.random() * 8 for _ in range(count)),
        [rng.choice([2000, 8000, 45_000]) for _ in range(count)],
        [rng.randint(1, 300) for _ in range(count)],
    )
    names = [spec.id for spec in cluster.engines]
    changes = [WorkerChange(t, rng.choice(names), alive=False) for t in range(1, 8)]
    changes += [WorkerChange(t + 0.7, rng.choice(names), alive=True) for t in range(1, 8)]
    run = run_of(cluster, workload, "always_split", changes=sorted(changes, key=lambda each: each.time_s))
    assert not run.aborted
    assert run.ok.any()
    assert not run.ok[workload.prompt_tokens > 40_000].any()


def test_workers_of_one_host_share_its_nic_and_the_oracle_knows_the_way() -> None:
    engines = tuple(worker(f"p{n}", Role.PREFILL, host="one") for n in range(2))
    engines += (worker("d0", Role.DECODE, host="two"), worker("d1", Role.DECODE, host="two", nic="own"))
    cluster = ClusterSpec("hosts", engines, path_class="tcp_100g", truth=QUIET)
    world = Simulation(
        cluster, workload_of(1), make_policy("oracle"), 0, SLORule(), None, None, lambda spec: STEPS
    ).world
    assert world.sends[0] is world.sends[1]
    assert world.receives[2] is not world.receives[3]
    assert run_of(cluster, workload_of(10), "oracle").ok.all()


def test_a_second_request_waits_for_the_first_contact_too() -> None:
    cluster = cluster_of(1, 1, 0, truth=QUIET)
    run = run_of(cluster, Workload.of("w", [0.0, 0.001], [300, 300], [5, 5]), "always_split")
    assert (run.ttft_s > path_of(cluster).first_contact_s).all()


def test_days_without_a_request_cost_nothing_and_hide_nothing() -> None:
    cluster = cluster_of(1, 1, 1)
    arrivals = [0.0, 3e5, 3e5 + 0.1]
    near = run_of(cluster, Workload.of("w", [0.0, 30.0, 30.1], [1000] * 3, [50] * 3))
    far = run_of(cluster, Workload.of("w", arrivals, [1000] * 3, [50] * 3), changes=(PathChange(10.0, 0.5),))
    assert far.ok.all()
    # engine and network events, and foreign traffic's; polls would be one a second
    assert far.events < near.events + 3e5
    dead = (WorkerChange(100.0, "c0", alive=False),)
    late = run_of(cluster_of(0, 0, 2), Workload.of("w", arrivals, [1000] * 3, [50] * 3), changes=dead)
    assert late.ok.all()
    assert not late.rescued.any()


def test_a_move_that_takes_for_ever_is_a_request_that_failed() -> None:
    cluster = cluster_of(1, 1, 0, truth=QUIET)
    run = run_of(cluster, workload_of(3), "always_split", changes=(PathChange(0.0, 1e-9),))
    assert not run.ok.any()
    assert not run.aborted


def test_a_request_sent_to_a_dead_worker_goes_elsewhere_and_that_is_known() -> None:
    cluster = replace(cluster_of(0, 0, 2, truth=QUIET), poll_s=1000.0)
    workload = Workload.of("w", np.arange(8) * 2.0 + 1.0, [1000] * 8, [5] * 8)
    run = run_of(cluster, workload, changes=(WorkerChange(2.0, "c0", alive=False),))
    assert run.ok.all()
    assert run.rescued.sum() == 1
    assert (run.dec[1:] == 1).all()
