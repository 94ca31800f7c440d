"""Handoffs teach the link model what their path takes, however far its catalogue entry is off."""

import dataclasses
import math
import random

import pytest

from kvferry.integrations.handoff.learning import learn, move_of
from kvferry.integrations.handoff.record import HandoffRecord
from kvferry.models.moves.choose import Form
from kvferry.models.terms.learner import Learner
from kvferry.policy.link import Link

LINK = Link("a", "b", "mooncake", "tcp_100g", 1e-4, 10e9, 5e9, 2e-6)
FORM = next(iter(Form))


class Clock:
    now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


def record(moved: int, pieces: int, transport_s: float, **more: object) -> HandoffRecord:
    plain = HandoffRecord(
        "a", "b", "mooncake", "direct", FORM, 1000, moved, moved, moved, pieces, 1, 1, 0.0, 0.0, 0.0,
        transport_s, transport_s, 0.0, 0.0, 0.0, 0.0, transport_s,
    )  # fmt: skip
    return dataclasses.replace(plain, **more)  # type: ignore[arg-type]


def true_s(moved: int, pieces: int, batches: int, beta: float, gamma: float) -> float:
    return batches * LINK.alpha_s + moved / beta + pieces * gamma


def predicted_s(learner: Learner, moved: int, pieces: int) -> float:
    """As `policy.predict` has a move that is alone."""
    state = learner.state("m", (LINK,), ("direct",))
    bytes_s = state["link_byte_factor"][0] * moved / LINK.beta_bytes_per_s
    posting_s = state["link_descriptor_factor"][0] * pieces * LINK.gamma_s_per_descriptor
    wire_s = float(state["link_slowness"][0] * (bytes_s + posting_s))
    return LINK.alpha_s + float(state["link_offset_s"][0]) + wire_s


@pytest.mark.parametrize("beta", [0.5e9, 2.2e9, 10e9, 40e9])
@pytest.mark.parametrize("gamma", [0.5e-6, 2e-6, 10e-6])
def test_after_thirty_handoffs_a_move_is_predicted_within_a_fifth(beta: float, gamma: float) -> None:
    clock, rng = Clock(), random.Random(1)
    learner = Learner(clock)
    for _ in range(30):
        clock.now_s += 1.0
        moved, pieces, batches = rng.choice((2**24, 2**26, 2**28)), rng.choice((1, 256, 4096)), 2
        took_s = true_s(moved, pieces, batches, beta, gamma) * rng.lognormvariate(0, 0.07)
        assert learn(learner, LINK, record(moved, pieces, took_s, batches=batches))
        learner.state("m", (LINK,), ("direct",))
    for moved, pieces in ((2**25, 64), (2**26, 256), (2**28, 4096), (2**27, 1024)):
        expected_s = true_s(moved, pieces, 1, beta, gamma)
        assert predicted_s(learner, moved, pieces) == pytest.approx(expected_s, rel=0.2)


def test_moves_that_shared_the_path_do_not_make_it_slow() -> None:
    clock = Clock()
    learner = Learner(clock)
    for _ in range(30):
        clock.now_s += 1.0
        alone_s = true_s(2**26, 256, 0, LINK.beta_bytes_per_s, LINK.gamma_s_per_descriptor)
        learn(learner, LINK, record(2**26, 256, 3 * alone_s + LINK.alpha_s, concurrency=3))
    expected_s = true_s(2**26, 256, 1, LINK.beta_bytes_per_s, LINK.gamma_s_per_descriptor)
    assert predicted_s(learner, 2**26, 256) == pytest.approx(expected_s, rel=0.1)


@pytest.mark.parametrize("more", [{"src": "c"}, {"transport": "nixl"}, {"batches": 0}, {"moved_bytes": 0}])
def test_a_handoff_that_says_nothing_of_the_link_is_passed_over(more: dict[str, object]) -> None:
    learner = Learner(Clock())
    assert not learn(learner, LINK, record(2**26, 256, 1.0, **more))
    assert learner.revision == 0


def test_what_is_less_than_the_latency_is_no_negative_time() -> None:
    move = move_of(record(4096, 1, 1e-6), LINK)
    assert move is not None
    assert move.busy_s == 0.0
    assert math.isfinite(move.moved_bytes)
