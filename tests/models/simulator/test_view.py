"""The simulated router: it knows what it did itself at once, and the rest as late as it is told."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from engine_worlds import STEPS
from small_worlds import QUIET, cluster_of, worker, workload_of

from kvferry.models.simulator.oracle import make_policy
from kvferry.models.simulator.simulation import Simulation, simulate
from kvferry.models.simulator.spec import ClusterSpec, SLORule, WorkerChange
from kvferry.models.simulator.view import RouterView, worker_of
from kvferry.models.workload.base import Workload
from kvferry.policy.base import Policy
from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import Decision
from kvferry.policy.request import Request
from kvferry.policy.worker import Role


@dataclass
class Look:
    """Keeps what it is shown, as it was then."""

    policy: Policy
    times_s: list[float] = field(default_factory=list)
    load_times_s: list[np.ndarray] = field(default_factory=list)
    own_decodes: list[np.ndarray] = field(default_factory=list)
    foreign_decodes: list[np.ndarray] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    down: list[set[str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, request: Request, cluster: Cluster) -> Decision:
        self.times_s.append(cluster.time_s)
        self.load_times_s.append(cluster.state.load_time_s.copy())
        self.own_decodes.append(cluster.state.own_decodes.copy())
        self.foreign_decodes.append(cluster.state.foreign_decodes.copy())
        self.requests.append(request)
        self.down.append({each.id for each in cluster.candidates.workers if not each.healthy})
        return self.policy.decide(request, cluster)


def looked(cluster: ClusterSpec, workload: Workload, name: str = "kvferry", **more: object) -> Look:
    look = Look(make_policy(name))
    simulate(cluster, workload, look, steps_of=lambda spec: STEPS, **more)  # type: ignore[arg-type]
    return look


@pytest.mark.parametrize("staleness_s", [0.0, 0.4, 2.5])
def test_no_poll_is_younger_than_the_staleness(staleness_s: float) -> None:
    cluster = cluster_of(staleness_s=staleness_s, poll_s=0.5)
    look = looked(cluster, workload_of(60))
    ages_s = np.array(
        [time_s - loads.max() for time_s, loads in zip(look.times_s, look.load_times_s, strict=True)]
    )
    polled = np.array([loads.max() > 0.0 for loads in look.load_times_s])
    assert polled.sum() > 20
    assert ages_s[polled].min() >= staleness_s - 1e-9
    assert ages_s[polled].max() <= staleness_s + 0.5 + 1e-9


def test_own_work_is_known_at_once_and_taken_off_what_workers_tell() -> None:
    workload = Workload.of("w", [0.0, 0.1, 5.0], [2000] * 3, [500, 500, 5])
    look = looked(cluster_of(0, 0, 1, truth=QUIET, staleness_s=3.0), workload)
    # promised sequences count half until their first token
    assert [own.tolist() for own in look.own_decodes] == [[0.0], [0.5], [2.0]]
    assert [foreign.tolist() for foreign in look.foreign_decodes] == [[0.0]] * 3


def test_outputs_are_learned_from_answers_that_have_ended() -> None:
    workload = Workload.of("w", np.arange(40) * 3.0, [100] * 40, [7] * 40)
    look = looked(cluster_of(0, 0, 1), workload)
    first, last = look.requests[0], look.requests[-1]
    assert first.expected_output_tokens > 100
    assert last.expected_output_tokens < 60
    assert last.expected_output_tokens_p90 < first.expected_output_tokens_p90


def test_held_prefixes_are_those_of_prompts_that_were_sent_there() -> None:
    blocks = [[1, 2, 3], [1, 2, 3, 4], [9]]
    workload = Workload.of("w", [0.0, 5.0, 10.0], [1600, 2100, 600], [5] * 3, blocks=blocks)
    look = looked(cluster_of(0, 0, 1), workload)
    assert [dict(request.held_tokens) for request in look.requests] == [{}, {"c0": 1536}, {}]
    without = looked(cluster_of(0, 0, 1, each={"prefix_cache": False}), workload)
    assert not any(request.held_tokens for request in without.requests)


def test_a_dead_worker_is_known_to_be_and_forgets_its_prefixes() -> None:
    blocks = [[1, 2, 3]] * 3
    workload = Workload.of("w", [0.0, 5.0, 12.0], [1600] * 3, [5] * 3, blocks=blocks)
    changes = (WorkerChange(4.0, "c0", alive=False), WorkerChange(6.0, "c0", alive=True))
    look = looked(cluster_of(0, 0, 1), workload, changes=changes)
    assert look.down == [set(), {"c0"}, set()]
    assert [dict(request.held_tokens) for request in look.requests] == [{}] * 3


def test_a_policy_draws_the_same_whatever_the_truth() -> None:
    """A request's own seed comes from the run's seed alone."""
    seeds = [
        [request.seed for request in looked(cluster, workload_of(9), "coin(0.5)").requests]
        for cluster in (cluster_of(), cluster_of(2, 2, 2, truth=QUIET))
    ]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 9


def test_a_worker_describes_itself_by_its_spec_alone() -> None:
    told = worker_of(worker("p0", Role.PREFILL, chunk_tokens=512, max_total_tokens=9000), "nixl")
    assert (told.id, told.role, told.transports) == ("p0", Role.PREFILL, ("nixl",))
    assert (told.speed.chunk_tokens, told.max_total_tokens) == (512, 9000)
    assert told.bootstrap_port is not None
    alone = worker_of(worker("c0", Role.COLOCATED, prefix_cache=False), "nixl")
    assert (alone.transports, alone.bootstrap_port) == ((), None)
    assert not alone.facts["caches_prefixes"]


def test_a_worker_that_does_not_answer_is_down_until_it_answers_again() -> None:
    cluster = cluster_of(0, 0, 2)
    simulation = Simulation(
        cluster, workload_of(1), make_policy("kvferry"), 0, SLORule(), None, None, lambda spec: STEPS
    )
    view: RouterView = simulation.view
    loads = simulation.world.engines[1].loads()
    simulation.events.now_s = 1.0
    view.polled([None, loads], 0.5)
    assert [each.healthy for each in view.workers] == [False, True]
    view.polled([loads, loads], 0.9)  # told before it went down
    assert [each.healthy for each in view.workers] == [False, True]
    simulation.events.now_s = 2.0
    view.polled([loads, loads], 1.5)
    assert [each.healthy for each in view.workers] == [True, True]


def test_a_return_is_known_by_the_next_poll_and_no_sooner() -> None:
    arrivals = np.arange(60) * 0.2
    workload = Workload.of("w", arrivals, [500] * 60, [20] * 60)
    changes = (WorkerChange(3.0, "c0", alive=False), WorkerChange(4.1, "c0", alive=True))
    look = looked(cluster_of(0, 0, 2, poll_s=2.0, staleness_s=1.0), workload, changes=changes)
    down = {time_s: bool(names) for time_s, names in zip(look.times_s, look.down, strict=True)}
    assert not any(down[time_s] for time_s in down if time_s < 3.0)
    # the poll of 6.0 is the first that it answers, and is seen a second later
    assert all(down[time_s] for time_s in down if 3.3 < time_s < 7.0)
    assert not any(down[time_s] for time_s in down if time_s > 7.0)
