"""Tokens per byte, learned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.tokens import PRIOR_TOKENS_PER_BYTE, TokenRatio


@given(st.floats(0.02, 2.0), st.integers(200, 100_000))
def test_it_converges_to_the_ratio_of_what_it_is_told(ratio: float, size: int) -> None:
    learned = TokenRatio()
    for _ in range(600):
        learned.learn("m", "/generate", size, round(size * ratio))
    assert learned.per_byte("m", "/generate") == pytest.approx(round(size * ratio) / size, rel=1e-3)


def test_kinds_and_models_are_apart_and_the_unknown_has_the_prior() -> None:
    learned = TokenRatio()
    learned.learn("m", "/generate", 100_000, 100_000)
    assert learned.per_byte("m", "/generate") > 0.9
    assert learned.per_byte("m", "/v1/chat/completions") == PRIOR_TOKENS_PER_BYTE
    assert learned.per_byte("other", "/generate") == PRIOR_TOKENS_PER_BYTE


def test_one_short_prompt_moves_it_little_and_it_forgets() -> None:
    learned = TokenRatio()
    learned.learn("m", "k", 4, 4)
    assert learned.per_byte("m", "k") == pytest.approx(PRIOR_TOKENS_PER_BYTE, rel=0.01)
    for _ in range(400):
        learned.learn("m", "k", 1000, 1000)
    for _ in range(400):
        learned.learn("m", "k", 1000, 100)
    assert learned.per_byte("m", "k") == pytest.approx(0.1, rel=0.01)


def test_nothing_is_learned_from_nothing_and_a_prompt_has_a_token() -> None:
    learned = TokenRatio()
    learned.learn("m", "k", 0, 5)
    learned.learn("m", "k", 5, 0)
    assert learned.per_byte("m", "k") == PRIOR_TOKENS_PER_BYTE
    assert learned.tokens("m", "k", 0) == learned.tokens("m", "k", 1) == 1
    assert learned.tokens("m", "k", 4000) == 1000
