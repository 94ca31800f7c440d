"""The rule by which local and split requests share the memory that both want."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.sglang.plugin.localprefill.fairness import FairShare, Side

LARGEST = 5000
SIZES = st.integers(1, LARGEST)
SHARES = st.floats(0.05, 0.95)


def other(side: Side) -> Side:
    return "split" if side == "local" else "local"


def admit(rule: FairShare, waiting: dict[Side, deque[int]]) -> tuple[Side, int] | None:
    """One place is free: whoever may take it does, local looked at first as in the scheduler."""
    sides: tuple[Side, Side] = ("local", "split")
    for side in sides:
        contended = bool(waiting[other(side)])
        if waiting[side] and rule.may_admit(side, contended):
            tokens = waiting[side].popleft()
            rule.charge(side, tokens, contended)
            return side, tokens
    return None


@given(SHARES, st.lists(SIZES, min_size=1, max_size=60), st.lists(SIZES, min_size=1, max_size=60))
def test_both_sides_get_their_share_while_both_want_more(
    share: float, local: list[int], split: list[int]
) -> None:
    rule = FairShare(share, LARGEST)
    waiting: dict[Side, deque[int]] = {"local": deque(local), "split": deque(split)}
    got: dict[Side, int] = {"local": 0, "split": 0}
    while waiting["local"] and waiting["split"]:
        admitted = admit(rule, waiting)
        assert admitted is not None
        got[admitted[0]] += admitted[1]
    # neither is ahead of its share by more than one admission
    assert abs((1 - share) * got["local"] - share * got["split"]) <= LARGEST


@given(SHARES, st.sampled_from(("local", "split")), st.lists(SIZES, min_size=1, max_size=40))
def test_a_side_alone_takes_everything(share: float, side: Side, sizes: list[int]) -> None:
    rule = FairShare(share, LARGEST)
    waiting: dict[Side, deque[int]] = {"local": deque(), "split": deque()}
    waiting[side].extend(sizes)
    assert [admit(rule, waiting) for _ in sizes] == [(side, size) for size in sizes]
    assert rule.credit == 0.0


@given(
    SHARES,
    st.lists(st.tuples(st.sampled_from(("local", "split")), SIZES, st.booleans()), max_size=80),
    st.sampled_from(("local", "split")),
)
def test_whatever_went_before_nobody_waits_for_long(
    share: float, past: list[tuple[Side, int, bool]], side: Side
) -> None:
    rule = FairShare(share, LARGEST)
    for taker, tokens, contended in past:
        rule.charge(taker, tokens, contended)
    ahead = 0
    while not rule.may_admit(side, other_waits=True):
        rule.charge(other(side), 100, other_waits=True)
        ahead += 100
    of_side = share if side == "local" else 1 - share
    assert ahead <= LARGEST / of_side + 200


def test_what_nobody_else_wanted_does_not_count() -> None:
    rule = FairShare(0.5, LARGEST)
    for _ in range(100):
        rule.charge("local", LARGEST, other_waits=False)
    assert rule.turn == "local"
    assert rule.contended_tokens == {"local": 0, "split": 0}


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.1])
def test_a_share_of_all_or_nothing_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        FairShare(share, LARGEST)
