"""The length of a chunk of local prefill, from what chunks and decode steps were measured to take."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvferry.integrations.sglang.plugin.localprefill.chunk import ChunkLength

PAGES = st.sampled_from((1, 16, 64))
TOKEN_S = st.floats(1e-6, 1e-2)
STEP_S = st.floats(1e-4, 0.2)
TARGET_S = st.floats(1e-3, 1.0)


def measured(token_s: float, step_s: float, *, target_s: float = 0.05, page: int = 1) -> ChunkLength:
    chunk = ChunkLength(target_s, 128, 2048, page)
    for _ in range(60):
        chunk.observe_chunk(512, 512 * token_s)
        chunk.observe_decode(step_s)
    return chunk


@given(TARGET_S, TOKEN_S, STEP_S, PAGES)
def test_a_chunk_and_a_step_fit_the_target_unless_the_least_chunk_does_not(
    target_s: float, token_s: float, step_s: float, page: int
) -> None:
    tokens = measured(token_s, step_s, target_s=target_s, page=page).tokens(1)
    assert tokens % page == 0
    assert 128 <= tokens <= 2048
    if tokens > 128:
        assert tokens * token_s + step_s <= target_s * 1.001
    if tokens < 2048:  # and no page more would have
        assert (tokens + page) * token_s + step_s > target_s * 0.999


@given(TOKEN_S, STEP_S, PAGES)
def test_without_decodes_there_is_nobody_to_wait_for(token_s: float, step_s: float, page: int) -> None:
    assert measured(token_s, step_s, page=page).tokens(0) == 2048


@given(st.lists(st.tuples(st.integers(-5, 4096), st.floats(-1.0, 1e6)), max_size=50), PAGES)
@example([(4096, 1e-309)], 1)  # so fast that an infinity of tokens would fit
def test_any_measurement_keeps_the_limits(samples: list[tuple[int, float]], page: int) -> None:
    chunk = ChunkLength(0.05, 100, 2000, page)
    for tokens, took_s in samples:
        chunk.observe_chunk(tokens, took_s)
        chunk.observe_decode(took_s)
        assert chunk.min_tokens <= chunk.tokens(3) <= chunk.max_tokens
        assert chunk.tokens(3) % page == 0


@given(st.floats(10.0, 1e6))
def test_one_outlier_moves_it_little(factor: float) -> None:
    chunk = measured(1e-4, 0.01)
    before = chunk.tokens(1)
    chunk.observe_chunk(512, 512 * 1e-4 * factor)
    assert chunk.tokens(1) >= before * 0.7


def test_a_lasting_change_is_followed() -> None:
    chunk = measured(1e-4, 0.01)
    assert chunk.tokens(1) == pytest.approx(400, abs=2)
    for _ in range(60):
        chunk.observe_chunk(400, 400 * 2e-4)
    assert chunk.tokens(1) == pytest.approx(200, abs=2)


def test_a_tiny_chunk_says_little_about_tokens() -> None:
    chunk, same = measured(1e-4, 0.01), measured(1e-4, 0.01)
    chunk.observe_chunk(2, 2 * 3e-4)
    same.observe_chunk(512, 512 * 3e-4)
    assert chunk.tokens(1) > same.tokens(1)


def test_before_anything_is_measured_it_is_as_short_as_allowed() -> None:
    chunk = ChunkLength(0.05, 128, 2048, 1)
    assert chunk.tokens(1) == 128
    assert chunk.tokens(0) == 2048


def test_limits_become_whole_pages() -> None:
    chunk = ChunkLength(0.05, 100, 1000, 64)
    assert (chunk.min_tokens, chunk.max_tokens) == (128, 960)
    assert ChunkLength(0.05, 100, 10, 64).tokens(0) == 64
