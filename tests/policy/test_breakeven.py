"""A slower path never breaks even earlier, and the terms are the ones that the docstring defines."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.policy.breakeven import Assumptions, break_even, exposed_transfer_s, prefill_s, prompt_grid
from kvferry.policy.kvshape import KVShape
from kvferry.policy.link import PathClass
from kvferry.policy.worker import Speed

SHAPE = KVShape(layers=64, kv_heads=8, head_dim=128)
MIXED = KVShape(
    layers=48, kv_heads=8, head_dim=256, window_layers=40, window_tokens=1024, fixed_bytes=1 << 20
)
SPEED = Speed(0.0084, 4.9e-5, 1.9e-9, 0.01, 3.2e-5, 3e-8)


def path(alpha_s: float = 1e-4, beta: float = 2e10, gamma_s: float = 1e-6, scope: str = "node") -> PathClass:
    return PathClass("p", alpha_s, beta, beta, beta, gamma_s, scope=scope)


def later(at: int | None) -> float:
    return float("inf") if at is None else at


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([SHAPE, MIXED]),
    st.floats(0, 0.1),
    st.floats(1e7, 1e12),
    st.floats(0, 1e-3),
    st.floats(1, 100),
    st.sampled_from(["alpha", "beta", "gamma", "in_flight"]),
    st.integers(0, 64),
    st.sampled_from([512, 2048, 8192]),
)
def test_a_slower_path_never_breaks_even_earlier(
    shape: KVShape, alpha: float, beta: float, gamma: float, by: float, what: str, decodes: int, chunk: int
) -> None:
    given_ = Assumptions(running_decodes=decodes, decode_batch=2 * decodes, chunk_tokens=chunk)
    fast = break_even(path(alpha, beta, gamma), shape, SPEED, given_)
    slower = {
        "alpha": (path(alpha * by + 1e-6, beta, gamma), given_),
        "beta": (path(alpha, beta / by, gamma), given_),
        "gamma": (path(alpha, beta, gamma * by + 1e-9), given_),
        "in_flight": (path(alpha, beta, gamma), dataclasses.replace(given_, in_flight=round(by))),
    }[what]
    slow = break_even(slower[0], shape, SPEED, slower[1])
    assert later(slow.at) >= later(fast.at)
    assert (slow.exposed_s >= fast.exposed_s - 1e-9).all()


def test_it_pays_at_every_length_from_there_on_and_not_just_before() -> None:
    found = break_even(path(), SHAPE, SPEED, Assumptions())
    assert found.at is not None
    pays = found.saved_s > found.paid_s
    row = int(np.searchsorted(found.prompt_tokens, found.at))
    assert pays[row:].all()
    assert not pays[row - 1]


def test_with_no_decodes_to_protect_a_split_never_pays() -> None:
    assert break_even(path(), SHAPE, SPEED, Assumptions(running_decodes=0, decode_batch=0)).at is None


def test_more_decodes_to_protect_make_a_split_pay_earlier() -> None:
    ats = [
        later(break_even(path(), SHAPE, SPEED, Assumptions(running_decodes=n, decode_batch=16)).at)
        for n in (4, 8, 16)
    ]
    assert ats[0] > ats[1] > ats[2]


def test_only_the_last_chunk_of_a_fast_path_is_exposed() -> None:
    given_ = Assumptions(chunk_tokens=2048, page_size=64)
    link = path(alpha_s=1e-3, beta=1e11, gamma_s=0.0)
    exposed = exposed_transfer_s(link, SHAPE, SPEED, given_, np.array([2048.0, 8192.0]))
    assert exposed == pytest.approx(1e-3 + 2048 * 262_144 / 1e11)


def test_a_path_slower_than_prefill_exposes_the_difference() -> None:
    """Chunks back to back on the wire: first chunk's prefill + whole transfer - whole prefill."""
    given_ = Assumptions(chunk_tokens=2048)
    link = path(alpha_s=0.0, beta=1e9, gamma_s=0.0)
    exposed = exposed_transfer_s(link, SHAPE, SPEED, given_, np.array([8192.0]))
    first, whole = (prefill_s(SPEED, np.array([n]), 2048) for n in (2048.0, 8192.0))
    assert exposed == pytest.approx(first + 8192 * 262_144 / 1e9 - whole)


def test_a_window_moves_once() -> None:
    shape = KVShape(layers=2, kv_heads=1, head_dim=100, window_layers=1, window_tokens=128)
    link = path(alpha_s=0.0, beta=1e6, gamma_s=0.0)
    fast = Speed(0.0, 1e-9, 0.0, 0.0, 0.0, 0.0)
    exposed = exposed_transfer_s(link, shape, fast, Assumptions(page_size=1), np.array([1000.0]))
    assert exposed == pytest.approx((1000 * 400 + 128 * 400) / 1e6, rel=1e-4)


def test_ranks_move_over_units_of_their_own() -> None:
    given_ = Assumptions(tp=4, units=4)
    tokens = np.array([4096.0])
    shared, own = (
        exposed_transfer_s(path(0.0, 1e9, 1e-6, scope), SHAPE, SPEED, given_, tokens)
        for scope in ("node", "nic")
    )
    assert shared == pytest.approx(4 * own)


def test_scattered_pages_cost_more_than_merged_ones() -> None:
    link = path(gamma_s=1e-5)
    scattered = break_even(link, SHAPE, SPEED, Assumptions(page_size=16))
    merged = break_even(link, SHAPE, SPEED, Assumptions(page_size=16, merged_pages=64))
    assert later(merged.at) < later(scattered.at)


@given(st.integers(1, 200_000))
def test_the_grid_ends_at_the_limit(limit: int) -> None:
    grid = prompt_grid(limit)
    assert grid[-1] == limit
    assert (np.diff(grid) > 0).all()
