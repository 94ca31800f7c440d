"""Expected lengths of answers: from the prior to what was seen, within what was asked for."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.output_tokens import CAP_TOKENS, PRIOR_TOKENS, OutputTokens


def after(*answers: float, cut_at: float = float("inf")) -> OutputTokens:
    lengths = OutputTokens()
    for tokens in answers:
        lengths.observe(min(tokens, cut_at), cut=tokens >= cut_at)
    return lengths


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, (256, 4096)), (1000, (256, 1000)), (16, (16, 16)), (0, (1, 1))]
)
def test_without_answers_it_is_the_prior_within_the_limit(
    limit: int | None, expected: tuple[float, float]
) -> None:
    assert OutputTokens().expect(limit) == expected
    assert OutputTokens().remaining == PRIOR_TOKENS


def test_one_length_is_learned() -> None:
    mean, p90 = after(*[100.0] * 400).expect()
    assert mean == pytest.approx(100.0, rel=0.15)
    assert p90 == pytest.approx(100.0, rel=0.35)
    assert after(*[100.0] * 400).expect(40) == pytest.approx((40.0, 40.0))
    assert after(*[100.0] * 400).remaining == pytest.approx(50.0, rel=0.4)


@pytest.mark.parametrize("cut_at", [float("inf"), 300.0, 150.0])
def test_a_mean_and_a_tail_are_learned_even_from_answers_that_were_cut_off(cut_at: float) -> None:
    rng = random.Random(3)
    drawn = [rng.expovariate(1 / 200.0) + 1.0 for _ in range(2000)]
    lengths = after(*drawn, cut_at=cut_at)
    asked = min(cut_at, 4096.0)
    true = sum(min(tokens, asked) for tokens in drawn) / len(drawn)
    assert lengths.expect(asked)[0] == pytest.approx(true, rel=0.2)
    mean, p90 = lengths.expect()
    assert mean == pytest.approx(200.0, rel=0.45)  # 150 shows no tail at all: the prior's stands in
    if cut_at > 300.0:
        assert p90 == pytest.approx(460.0, rel=0.35)
        assert lengths.remaining == pytest.approx(200.0, rel=0.3)


def test_what_was_cut_off_is_not_taken_for_a_short_answer() -> None:
    assert after(*[64.0] * 200, cut_at=64.0).expect(1000)[0] > 250.0
    assert after(*[64.0] * 200).expect(1000)[0] < 90.0
    assert after(*[64.0] * 200, cut_at=64.0).expect(64)[0] == pytest.approx(64.0)


def test_it_follows_a_model_whose_answers_change_length() -> None:
    lengths = after(*[1000.0] * 1000)
    before = lengths.expect()[0]
    for _ in range(300):
        lengths.observe(50.0)
    assert before > 850.0
    assert lengths.expect()[0] < 150.0


@given(
    st.lists(st.tuples(st.one_of(st.floats(), st.integers(0, 100_000)), st.booleans()), max_size=60),
    st.one_of(st.none(), st.integers(0, 10**7)),
)
def test_whatever_was_seen_the_limit_holds(told: list[tuple[float, bool]], limit: int | None) -> None:
    lengths = OutputTokens()
    for tokens, cut in told:
        lengths.observe(tokens, cut=cut)
    mean, p90 = lengths.expect(limit)
    most = max(1.0, CAP_TOKENS if limit is None else float(min(limit, 10**6)))
    assert 1.0 <= mean <= p90 <= most
    assert 0.0 < lengths.remaining < float("inf")


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.integers(1, 9000), st.integers(1, 9000))
def test_a_higher_limit_never_lowers_what_is_expected(drawn: list[int], one: int, other: int) -> None:
    lengths = after(*map(float, drawn))
    low, high = lengths.expect(min(one, other)), lengths.expect(max(one, other))
    assert low[0] <= high[0] + 1e-9
    assert low[1] <= high[1] + 1e-9


def test_millions_of_answers_do_not_overflow_it() -> None:
    lengths = OutputTokens()
    for _ in range(20_000):
        lengths.observe(300.0)
    assert lengths.expect()[0] == pytest.approx(300.0, rel=0.1)
