"""What a local prefill is held to cost those who decode there, where the worker's plugin measures it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from worlds import ask, busy, cluster, clusters, requests, worker

from kvferry.policy.cluster import Cluster, State
from kvferry.policy.evaluation import Evaluation
from kvferry.policy.plan import Colocated
from kvferry.policy.predict import predict
from kvferry.policy.request import Request
from kvferry.policy.worker import Role, Speed


def on_decode(stall_s_per_token: float) -> Cluster:
    """One decode worker that prefills, with 10 decodes running; 1,000 tokens take 0.1 s there."""
    load = busy(10, 5_000, stall_s_per_token=stall_s_per_token)
    speed = Speed(0.0, 1e-4, 0.0, 0.01, 0.0, 0.0)
    return cluster([worker(Role.DECODE, local_prefill=True, speed=speed, load=load)])


def test_a_measured_stall_stands_in_for_the_prefill() -> None:
    request = ask(1000, expected_output_tokens=200.0)
    guessed, measured = (predict(request, on_decode(rate)).standing for rate in (0.0, 3e-5))
    # 10 decodes have 100 tokens left each: a step of 10 ms, and 1/100 of the stall on top of each
    assert guessed.stall_s == pytest.approx([0.1])
    assert guessed.itls_s[1] == pytest.approx([0.011])
    assert measured.stall_s == pytest.approx([0.03])
    assert measured.itls_s[1] == pytest.approx([0.0103])
    where = np.array([0])
    # nobody arrives and a batch of any size takes a step of 10 ms: all harm is the stall
    assert guessed.harm_s(where, where) == pytest.approx([10 * 0.1])
    assert measured.harm_s(where, where) == pytest.approx([10 * 0.03])


def test_the_queue_behind_still_waits_for_the_whole_prefill() -> None:
    world = on_decode(3e-5)
    world.state.arrivals_per_s[:] = 2.0
    found = predict(ask(1000, expected_output_tokens=200.0), world).standing
    where = np.array([0])
    assert found.harm_s(where, where) == pytest.approx([10 * 0.03 + 0.4 * 2.0 * 0.1 * 0.1])


def test_what_one_worker_measures_says_nothing_of_another() -> None:
    workers = [
        worker(Role.DECODE, name, local_prefill=True, load=busy(10, 5_000, stall_s_per_token=rate))
        for name, rate in (("d0", 0.0), ("d1", 4e-5))
    ]
    found = predict(ask(1000), cluster(workers)).standing
    assert found.stall_s == pytest.approx([found.prefill_s[0], 0.04])


def test_tokens_that_are_held_stall_nobody() -> None:
    found = predict(ask(1000, held_tokens={"decode": 900}), on_decode(3e-5)).standing
    assert found.stall_s == pytest.approx([100 * 3e-5])


@given(clusters(), requests, st.floats(1e-9, 1e-2), st.floats(1.0, 1e3), st.data())
def test_a_longer_measured_stall_never_makes_a_worker_look_better(
    world: Cluster, request: Request, rate: float, worse: float, data: st.DataObject
) -> None:
    here = [plan for plan in world.candidates.plans if isinstance(plan, Colocated)]
    assume(here)
    plan = data.draw(st.sampled_from(here))
    row = world.candidates.plans.index(plan)
    place = world.candidates.index[plan.worker]

    def score_at(stall_s_per_token: float) -> tuple[float, float, float]:
        columns = ("stall_s_per_token", "prefill_share")
        state: State = replace(world.state, **{name: getattr(world.state, name).copy() for name in columns})
        state.stall_s_per_token[place] = stall_s_per_token
        # where a queue, or prompts all the time, cost its decodes their objective already, no more is lost
        state.own_prefill_tokens[place] = state.foreign_prefill_tokens[place] = 0.0
        state.prefill_share[place] = 0.0
        found = Evaluation.of(request, replace(world, state=state))
        harm = found.prediction.standing.harm_s(world.candidates.pre, world.candidates.dec)
        return found.scores.total[row], found.scores.cautious[row], harm[row]

    short, long = score_at(rate), score_at(rate * worse)
    assert all(more >= less * (1 - 1e-12) - 1e-12 for less, more in zip(short, long, strict=True))
