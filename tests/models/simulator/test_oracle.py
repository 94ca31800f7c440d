"""What a policy is told, and what only the oracle may know."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from engine_worlds import STEPS
from small_worlds import Seen, Spy, cluster_of, with_outputs, workload_of

from kvferry.models.simulator.oracle import make_policy
from kvferry.models.simulator.run import Run
from kvferry.models.simulator.simulation import Simulation
from kvferry.models.simulator.spec import ClusterSpec, SLORule, TruthSpec
from kvferry.models.workload.base import Workload
from kvferry.policy.base import Policy
from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import Decision
from kvferry.policy.request import Request

FAIR = ("kvferry", "random_by_workers")
CUT_S = 6.0


@dataclass
class Peek:
    """A rule that splits by what it must not know: a test double."""

    secret: Callable[[Simulation, int], bool]
    simulation: Simulation | None = None
    split: Policy = field(default_factory=lambda: make_policy("always_split"))
    keep: Policy = field(default_factory=lambda: make_policy("always_colocated"))

    @property
    def name(self) -> str:
        return "peek"

    def decide(self, request: Request, cluster: Cluster) -> Decision:
        assert self.simulation is not None
        chosen = self.split if self.secret(self.simulation, int(request.id)) else self.keep
        return chosen.decide(request, cluster)


def spied(cluster: ClusterSpec, workload: Workload, policy: Policy) -> tuple[Run, list[Seen]]:
    spy = Spy(policy)
    simulation = Simulation(cluster, workload, spy, 0, SLORule(), None, None, lambda spec: STEPS)
    if isinstance(policy, Peek):
        policy.simulation = simulation
    return simulation.run(), spy.seen


def told_apart(one: list[Seen], two: list[Seen], until_s: float) -> list[str]:
    """Where what was given or decided before `until_s` differs; there must be plenty to compare."""
    first, second = ([seen for seen in each if seen.time_s < until_s] for each in (one, two))
    assert len(first) >= 20
    found = [] if len(first) == len(second) else ["count"]
    for mine, theirs in zip(first, second, strict=False):
        differ = [a for a, b in zip(mine.inputs, theirs.inputs, strict=True) if a != b]
        found += [each.partition("=")[0] for each in differ]
        found += ["plan"] if mine.plan != theirs.plan else []
    return found


def by_outputs(policy: Callable[[], Policy], workload: Workload) -> list[str]:
    """Two worlds that differ in nothing but the outputs of requests that end after CUT_S."""
    cluster = cluster_of(2, 2, 2)
    run, seen = spied(cluster, workload, policy())
    late = ~(run.arrival_s + run.e2e_s <= CUT_S)
    assert (late & (run.arrival_s < CUT_S)).sum() > 10
    other = with_outputs(workload, np.where(late, workload.output_tokens + 501, workload.output_tokens))
    if (workload.max_new_tokens == workload.output_tokens).all():
        other = replace(other, max_new_tokens=other.output_tokens)
    again, seen_again = spied(cluster, other, policy())
    assert (again.arrival_s + again.e2e_s)[late].min() > CUT_S
    assert seen[-1].inputs != seen_again[-1].inputs  # by then it shows, or the spy is blind
    return told_apart(seen, seen_again, CUT_S)


def busy(seed: int = 0) -> Workload:
    return workload_of(75, seed, rate=10.0, prompt=3000, output=150)


@pytest.mark.parametrize("name", FAIR)
def test_outputs_that_have_not_ended_change_nothing_that_a_policy_is_given_or_decides(name: str) -> None:
    assert by_outputs(lambda: make_policy(name), busy()) == []


def test_a_policy_that_reads_a_future_output_is_caught() -> None:
    found = by_outputs(lambda: Peek(lambda world, row: world._outputs[row] % 2 == 0), busy())
    assert "plan" in found


def test_a_workload_that_tells_outputs_as_limits_is_caught() -> None:
    workload = busy()
    workload = replace(workload, max_new_tokens=workload.output_tokens)
    assert "Request.max_new_tokens" in by_outputs(lambda: make_policy("always_split"), workload)


def test_the_oracle_alone_is_told_outputs() -> None:
    assert "Request.expected_output_tokens" in by_outputs(lambda: make_policy("oracle"), busy())


def test_outputs_do_not_leak_through_limits_that_nobody_set() -> None:
    short = Workload.of("w", [0.0], [10], [5])
    long = Workload.of("w", [0.0], [10], [500_000])
    assert short.max_new_tokens.tolist() == long.max_new_tokens.tolist()


TRUTHS = {
    "speeds": TruthSpec(speed_sigma=0.5),
    "bandwidths": TruthSpec(bandwidth_sigma=1.0),
    "contention": TruthSpec(contention_share=0.9),
    "noise": TruthSpec(step_sigma=0.3),
}


def burst() -> Workload:
    """All are there before any can have its first token, and before the workers are asked again."""
    workload = workload_of(40, rate=400.0, prompt=8000, output=50)
    return replace(workload, prompt_tokens=np.maximum(workload.prompt_tokens, 6000))


def by_truth(policy: Callable[[], Policy], truth: TruthSpec) -> list[str]:
    """Two worlds of one seed that differ in their truth alone, until the first thing that could show it."""
    later = workload_of(10, seed=1, rate=2.0)
    both = Workload.of(
        "both",
        np.concatenate((burst().arrival_s, 3.0 + later.arrival_s)),
        np.concatenate((burst().prompt_tokens, later.prompt_tokens)),
        np.concatenate((burst().output_tokens, later.output_tokens)),
    )
    run, seen = spied(cluster_of(2, 2, 2), both, policy())
    again, seen_again = spied(cluster_of(2, 2, 2, truth=truth), both, policy())
    first_s = min(np.nanmin(each.arrival_s + each.ttft_s) for each in (run, again))
    assert seen[-1].inputs != seen_again[-1].inputs
    return told_apart(seen, seen_again, min(first_s, 1.0))


@pytest.mark.parametrize("truth", TRUTHS)
def test_true_speeds_and_bandwidths_are_known_by_their_outcomes_alone(truth: str) -> None:
    assert by_truth(lambda: make_policy("kvferry"), TRUTHS[truth]) == []


def test_a_policy_that_reads_a_true_speed_or_bandwidth_is_caught() -> None:
    fast = Peek(lambda world, row: world.world.speeds[row % 6] > 1.03)
    assert by_truth(lambda: fast, TRUTHS["speeds"])
    wide = Peek(lambda world, row: world.world.slowness(row % 6) > 1.2)
    assert by_truth(lambda: wide, TRUTHS["bandwidths"])


def test_the_oracle_is_told_speeds_and_bandwidths() -> None:
    assert "State.prefill_s_per_token" in by_truth(lambda: make_policy("oracle"), TRUTHS["speeds"])
    assert "State.link_slowness" in by_truth(lambda: make_policy("oracle"), TRUTHS["bandwidths"])


def test_the_oracle_is_made_by_its_name_and_nothing_else_is_it() -> None:
    assert make_policy(" oracle ").name == "oracle"
    assert make_policy("kvferry").name != "oracle"
    with pytest.raises(ValueError, match="unknown policy"):
        make_policy("oracle(1)")
