"""What prompts teach of workers: how long prefill takes, and when a worker has become another."""

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.terms.prefill import Prefills
from kvferry.policy.kvshape import KVShape
from kvferry.policy.worker import Role, Speed, Worker

PRIOR = Speed(prefill_base_s=0.004, prefill_s_per_token=1e-4, prefill_s_per_token2=0.0)
TRUE = Speed(prefill_base_s=0.02, prefill_s_per_token=2e-4, prefill_s_per_token2=2e-8)


def worker(name: str = "w", **more: object) -> Worker:
    return dataclasses.replace(
        Worker(name, f"http://{name}", Role.PREFILL, "m", KVShape(2, 2, 64), speed=PRIOR), **more
    )


def taken_s(speed: Speed, new: float, cached: float = 0.0) -> float:
    per_token = speed.prefill_s_per_token + speed.prefill_s_per_token2 * (cached + 0.5 * new)
    return speed.prefill_base_s + new * per_token


def computed(prefills: Prefills, count: int, of: Worker | None = None, *, slower: float = 1.0,
             start_s: float = 0.0, seed: int = 0, noise: float = 0.1) -> float:  # fmt: skip
    rng = random.Random(seed)
    for place in range(count):
        new, cached = math.exp(rng.uniform(3.0, 8.3)), rng.choice((0.0, 2000.0))
        took_s = slower * taken_s(TRUE, new, cached) * math.exp(rng.gauss(0.0, noise))
        prefills.computed(of or worker(), PRIOR, new, cached, took_s, start_s + place + 1.0)
    return start_s + count


def speed_of(prefills: Prefills, now_s: float, of: Worker | None = None) -> Speed:
    (speed,) = prefills.speeds([(of or worker(), PRIOR)], now_s)
    return speed


def off(speed: Speed, slower: float = 1.0) -> float:
    """The largest relative error over lengths."""
    cases = [(20.0, 0.0), (500.0, 0.0), (4000.0, 0.0), (1000.0, 4000.0)]
    return max(abs(taken_s(speed, *case) / (slower * taken_s(TRUE, *case)) - 1.0) for case in cases)


def test_without_prompts_the_counters_hold() -> None:
    assert speed_of(Prefills(), 0.0) == PRIOR


def test_a_worker_is_known_after_thirty_prompts() -> None:
    prefills = Prefills()
    speed = speed_of(prefills, computed(prefills, 30) + 10.0)
    assert off(PRIOR) > 0.4
    assert off(speed) < 0.15
    assert speed.reported


def test_workers_alike_speak_for_one_that_was_not_heard() -> None:
    prefills, now_s = Prefills(), 0.0
    for name in ("a", "b", "c"):
        now_s = computed(prefills, 20, worker(name), start_s=now_s)
    assert off(speed_of(prefills, now_s + 10.0, worker("new"))) < 0.25
    assert speed_of(prefills, now_s, worker("other", facts={"gpu": "another"})) == pytest.approx(PRIOR)


@pytest.mark.parametrize("slower", [10.0, 3.0, 0.2])
def test_a_worker_that_changes_is_believed_within_ten_prompts(slower: float) -> None:
    prefills = Prefills()
    now_s = computed(prefills, 60)
    now_s = computed(prefills, 10, slower=slower, start_s=now_s, seed=1)
    assert off(speed_of(prefills, now_s), slower) < 0.4
    assert prefills.pool.changes == 1


@pytest.mark.parametrize("slower", [10.0, 0.1])
def test_one_outlier_is_not(slower: float) -> None:
    prefills = Prefills()
    now_s = computed(prefills, 30)
    now_s = computed(prefills, 1, slower=slower, start_s=now_s, seed=2)
    assert off(speed_of(prefills, now_s + 10.0)) < 0.2
    assert prefills.pool.changes == 0


numbers = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, 1e-300, 1e300]))


@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=10))
def test_nothing_that_is_said_makes_a_speed_absurd(told: list[tuple[float, float, float]]) -> None:
    prefills = Prefills()
    for count, (new, cached, took_s) in enumerate(told):
        prefills.computed(worker(), PRIOR, new, cached, took_s, float(count))
        speed = speed_of(prefills, float(count))
        assert 0.0 <= speed.prefill_base_s < math.inf
        assert 0.0 < speed.prefill_s_per_token < math.inf
        assert 0.0 <= speed.prefill_s_per_token2 < math.inf
