"""Speed from cumulative counters: over polls, idleness and restarts."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.speedometer import Speedometer, alike
from kvferry.policy.kvshape import KVShape
from kvferry.policy.worker import Role, Speed, Worker

PRIOR = Speed(prefill_base_s=0.01, prefill_s_per_token=1e-3)


def loads(tokens: int, busy_s: float, moments: list[float] | None = None, ranks: int = 1) -> dict[str, Any]:
    rank = {
        "total_prefill_uncached_tokens": tokens,
        "total_prefill_busy_us": busy_s * 1e6,
        "decode_moments": moments,
    }
    return {"loads": [rank] * ranks}


def test_until_enough_was_seen_the_prior_stands() -> None:
    meter = Speedometer(PRIOR)
    assert meter.read({}, 0.0) == PRIOR
    assert meter.read(loads(100, 0.01), 1.0) == PRIOR
    assert meter.read(loads(1000, 0.1), 2.0).reported


def test_prefill_speed_is_tokens_over_busy_time_and_follows_a_change() -> None:
    meter = Speedometer(PRIOR)
    tokens, busy_s, speed = 0, 0.0, PRIOR
    for poll in range(200):
        tokens += 1000
        busy_s += 0.1 if poll < 100 else 0.2
        speed = meter.read(loads(tokens, busy_s), poll * 0.25)
        if poll == 99:
            assert speed.prefill_s_per_token == pytest.approx(1e-4, rel=1e-6)
    assert speed.prefill_s_per_token == pytest.approx(2e-4, rel=5e-2)


def test_idle_polls_change_neither_speed_nor_moments() -> None:
    meter = Speedometer(PRIOR)
    first = meter.read(loads(5000, 0.5, [100, 100, 1e6, 100, 1e6, 0]), 0.0)
    for second in range(1, 50):
        later = meter.read(loads(5000, 0.5, [100, 100, 1e6, 100, 1e6, 0]), float(second))
        assert later.prefill_s_per_token == pytest.approx(first.prefill_s_per_token)
        assert later.decode_base_s == pytest.approx(first.decode_base_s)
    assert meter.share == pytest.approx(0.0, abs=1e-3)


def test_a_restart_begins_again_without_negative_speeds() -> None:
    meter = Speedometer(PRIOR)
    meter.read(loads(50_000, 5.0), 0.0)
    speed = meter.read(loads(300, 0.06), 1.0)
    assert speed.prefill_s_per_token > 0
    assert 0.0 <= meter.share <= 1.0


def test_ranks_work_side_by_side() -> None:
    meter = Speedometer(PRIOR)
    assert meter.read(loads(1000, 0.1, ranks=4), 0.0).prefill_s_per_token == pytest.approx(0.1 / 4000)


def test_the_share_of_time_spent_prefilling() -> None:
    meter = Speedometer(PRIOR)
    for poll in range(200):
        meter.read(loads(poll * 1000, poll * 0.1), poll * 0.25)
    assert meter.share == pytest.approx(0.4, rel=0.01)


def moments(base_s: float, per_sequence_s: float, batches: list[int]) -> list[float]:
    times = [(base_s + per_sequence_s * b) * 1e6 for b in batches]
    pairs = list(zip(batches, times, strict=True))
    return [len(batches), sum(batches), sum(times), sum(b * b for b in batches), sum(b * t for b, t in pairs)]


@given(
    st.floats(1e-4, 0.1),
    st.floats(0.0, 0.01),
    st.lists(st.integers(1, 256), min_size=20, max_size=100).filter(lambda seen: max(seen) - min(seen) > 4),
)
def test_a_decode_step_is_found_from_its_moments(base_s: float, slope_s: float, batches: list[int]) -> None:
    speed = Speedometer(PRIOR).read(loads(0, 0.0, moments(base_s, slope_s, batches)), 0.0)
    assert speed.decode_base_s == pytest.approx(base_s, rel=1e-3, abs=1e-5)
    assert speed.decode_s_per_sequence == pytest.approx(slope_s, rel=1e-3, abs=1e-6)


@given(
    st.floats(1e-6, 0.01),
    st.floats(1.0, 4.0),
    st.lists(st.integers(1, 64), min_size=20, max_size=100),
)
def test_steps_that_grow_faster_than_their_batch_cost_no_negative_time(
    unit_s: float, power: float, batches: list[int]
) -> None:
    times_us = [unit_s * 1e6 * size**power for size in batches]
    sums = [sum(b * b for b in batches), sum(b * t for b, t in zip(batches, times_us, strict=True))]
    seen = [float(len(batches)), float(sum(batches)), sum(times_us), *sums]
    speed = Speedometer(PRIOR).read(loads(0, 0.0, seen), 0.0)
    assert speed.decode_base_s >= 0.0  # a hair below would make the scores of an idle worker NaN
    assert speed.decode_s_per_sequence >= 0.0


def test_one_batch_size_gives_its_mean_and_no_slope() -> None:
    speed = Speedometer(PRIOR).read(loads(0, 0.0, moments(0.02, 0.001, [4] * 50)), 0.0)
    assert (speed.decode_base_s, speed.decode_s_per_sequence) == (pytest.approx(0.024), 0.0)


@pytest.mark.parametrize("odd", [None, [], [1.0], [30, 30, 1e6]])
def test_moments_that_are_none_are_done_without(odd: Any) -> None:
    assert Speedometer(PRIOR).read(loads(0, 0.0, odd), 0.0).decode_base_s == PRIOR.decode_base_s


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.floats(0, 10)), max_size=30))
def test_no_sequence_of_counters_gives_a_senseless_speed(polls: list[tuple[int, int, float]]) -> None:
    meter, time_s = Speedometer(PRIOR), 0.0
    for tokens, busy_us, wait_s in polls:
        time_s += wait_s
        speed = meter.read(loads(tokens, busy_us * 1e-6), time_s)
        assert speed.prefill_s_per_token >= 0.0
        assert 0.0 <= meter.share <= 1.0


def test_one_slow_prompt_does_not_make_a_worker_slow_for_good() -> None:
    unlucky, like = Speedometer(PRIOR), Speedometer(PRIOR)
    alone = unlucky.read(loads(2000, 2.0), 0.0)
    like.read(loads(40_000, 4.0), 0.0)
    together = unlucky.among((unlucky, like))
    assert alone.prefill_s_per_token == pytest.approx(1e-3)
    assert 1e-4 < together.prefill_s_per_token < 4e-4
    later = [unlucky.read(loads(2000, 2.0), 60.0 * minute) for minute in range(1, 20)][-1]
    assert later.prefill_s_per_token == pytest.approx(1e-3)
    assert unlucky.among((unlucky, like)).prefill_s_per_token < together.prefill_s_per_token


def test_a_worker_that_has_served_nothing_is_as_fast_as_its_like() -> None:
    fresh, like = Speedometer(PRIOR), Speedometer(PRIOR)
    like.read(loads(40_000, 4.0, [200, 400, 2e6, 1000, 6e6, 0]), 0.0)
    speed = fresh.among((fresh, like))
    assert speed.reported
    assert speed.prefill_s_per_token == pytest.approx(1e-4)
    assert speed.decode_base_s == pytest.approx(like.among((like,)).decode_base_s)


def test_a_pool_without_evidence_leaves_the_prior() -> None:
    assert Speedometer(PRIOR).among([Speedometer(PRIOR)] * 3) == PRIOR


def test_a_known_shape_keeps_its_form_at_the_pace_that_is_seen() -> None:
    prior = Speed(prefill_base_s=0.01, prefill_s_per_token=1e-4, prefill_s_per_token2=1e-8)

    def by_prior(new: float, cached: float = 0.0) -> float:
        return 0.01 + 1e-4 * new + 1e-8 * new * (cached + new / 2)

    meter = Speedometer(prior)
    tokens, busy_s, speed = 0, 0.0, prior
    for poll, new in enumerate([200, 40_000, 3_000] * 20):
        tokens += new
        busy_s += 1.7 * by_prior(new)
        meter.prefilled(new, 0)
        speed = meter.read(loads(tokens, busy_s), poll * 0.25)
    found = speed.prefill_base_s, speed.prefill_s_per_token, speed.prefill_s_per_token2
    assert found == pytest.approx((0.017, 1.7e-4, 1.7e-8), rel=0.02)


def test_workers_with_other_chunks_or_roles_are_not_alike() -> None:
    shape = KVShape(layers=1, kv_heads=1, head_dim=1)
    one = Worker("a", "http://a", Role.DECODE, "m", shape, speed=Speed(chunk_tokens=512))
    assert alike(one) == alike(replace(one, id="b", url="http://b"))
    assert alike(one) != alike(replace(one, role=Role.COLOCATED))
    assert alike(one) != alike(replace(one, speed=Speed(chunk_tokens=1024)))
