"""Decodes that share steps with prefill chunks, and decodes that wait for prompts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import ask, busy, cluster, worker

from kvferry.policy.cluster import Cluster
from kvferry.policy.predict import predict
from kvferry.policy.worker import Role, Speed

SPEED = Speed(0.0, 1e-4, 0.0, 0.01, 0.0, 0.0, chunk_tokens=512)


def mixing(decodes: float = 12, share: float = 0.0, queued: float = 0.0, mixes: bool = True) -> Cluster:
    """A decode step takes 10 ms, and a mixed one (512 - 12) * 0.1 ms = 50 ms."""
    load = busy(decodes, 1_000, prefill_share=share, prefill_tokens=queued)
    return cluster([worker(Role.COLOCATED, speed=SPEED, load=load, mixes_chunks=mixes)])


def test_a_worker_that_always_prefills_gives_a_token_with_every_chunk() -> None:
    standing = predict(ask(1000, expected_output_tokens=200.0), mixing(queued=1e6)).standing
    assert standing.itls_s == pytest.approx(0.05)


def test_a_share_of_mixed_steps_is_a_mean_over_tokens() -> None:
    # half of the time in steps of 50 ms, half in steps of 10 ms: 0.5 / 50 + 0.5 / 10 tokens a ms
    standing = predict(ask(1000, expected_output_tokens=200.0), mixing(share=0.5)).standing
    assert standing.itls_s[0] == pytest.approx(1 / (0.5 / 0.05 + 0.5 / 0.01))


def test_a_prompt_takes_as_many_mixed_steps_as_it_has_chunks() -> None:
    # 1,000 tokens are two chunks of 500, each 40 ms longer than a decode step, over 100 tokens
    standing = predict(ask(1000, expected_output_tokens=200.0), mixing()).standing
    assert standing.itls_s[:2, 0] == pytest.approx([0.01, 0.01 + 2 * 0.04 / 100])
    assert standing.stall_s == pytest.approx([2 * 0.04])


def test_decodes_that_share_no_steps_wait_for_every_prompt() -> None:
    standing = predict(ask(1000, expected_output_tokens=200.0), mixing(queued=3000.0, mixes=False)).standing
    assert standing.itls_s[:2, 0] == pytest.approx([0.01 + 0.3 / 100, 0.01 + 0.4 / 100])


def test_a_measured_stall_says_how_much_longer_a_mixed_step_is() -> None:
    # 500 tokens at 20 us each: 20 ms instead of 10
    load = busy(12, 1_000, stall_s_per_token=2e-5, prefill_tokens=1e6)
    told = cluster([worker(Role.DECODE, local_prefill=True, speed=SPEED, load=load, mixes_chunks=True)])
    standing = predict(ask(1000, expected_output_tokens=200.0), told).standing
    assert standing.itls_s == pytest.approx(0.02)
    assert standing.stall_s == pytest.approx([1000 * 2e-5])


@given(st.floats(0, 400), st.floats(0, 1), st.floats(0, 1e6), st.integers(1, 200_000), st.floats(1, 4000))
def test_nobody_waits_longer_for_a_token_than_a_mixed_step(
    decodes: float, share: float, queued: float, tokens: int, output: float
) -> None:
    world = mixing(decodes, share, queued)
    longest_s = max(0.01, (512 - min(decodes, 256)) * 1e-4)
    itls_s = predict(ask(tokens, expected_output_tokens=output), world).standing.itls_s
    assert (itls_s >= 0.01 - 1e-12).all()
    assert (itls_s <= longest_s + 1e-12).all()
    assert itls_s[0, 0] <= itls_s[1, 0] + 1e-12


def test_work_of_others_and_own_seconds_are_one_queue() -> None:
    world = mixing(queued=1000.0)
    state = replace(world.state, own_prefill_s=world.state.own_prefill_s + 0.25)
    standing = predict(ask(500), replace(world, state=state)).standing
    assert standing.waits_s[0] == pytest.approx([0.1 + 0.25])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_worker_whose_speed_nobody_knows_yet_makes_no_noise(share: float) -> None:
    load = busy(0, 0, prefill_share=share)
    unknown = worker(Role.COLOCATED, speed=Speed(0.0, 0.0, 0.0, 0.0, 0.0, 0.0), load=load, mixes_chunks=True)
    standing = predict(ask(1000), cluster([unknown])).standing
    assert standing.itls_s == pytest.approx(0.0, abs=1e-6)
