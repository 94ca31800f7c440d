"""When a link's figures become those of a probe, what was learned by the old ones is not applied again."""

import random

import pytest

from kvferry.models.link_speed import LinkSpeeds
from kvferry.models.terms.learner import Learner, Move
from kvferry.models.terms.way import Path, Way, Wire, base_of
from kvferry.policy.link import Evidence, Link

BY_CATALOGUE = Link("a", "b", "mooncake", "tcp_100g", 1e-4, 10e9, 5e9, 2e-6, handoff_s=2e-3)
# Ten times slower than the catalogue says.
BY_PROBE = Link(
    "a", "b", "mooncake", "tcp_100g.probed.0", 1e-4, 1e9, 9e8, 2e-6, 0.0, 0.0, 2e-3, evidence=Evidence.PROBE,
)  # fmt: skip
AB, CD = Path("a", "b", "mooncake"), Path("c", "d", "mooncake")
OLD, NEW = Wire(0.1), Wire(1.0, base="probed")


class Clock:
    now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


def moves(learner: Learner, clock: Clock, link: Link, count: int, beta: float, seed: int = 0) -> None:
    """What the link truly takes: bytes over `beta`."""
    rng, way = random.Random(seed), Way(link, 0, 1000.0, 4096.0)
    for _ in range(count):
        clock.now_s += 1.0
        moved = rng.choice((1e8, 1e9))
        took_s = (moved / beta + 2e-6) * rng.lognormvariate(0, 0.05)
        learner.state("m", (link,), ("direct",))
        learner.moved(Move(way, "direct", moved, 1.0, seen_s=way.around_s(moved) + took_s))


def expected_s(learner: Learner, link: Link, moved: float) -> float:
    """Seconds on the wire of a move, as `predict` has them."""
    state = learner.state("m", (link,), ("direct",))
    slow = state["link_slowness"][0] * state["link_byte_factor"][0]
    return float(slow * moved / link.beta_bytes_per_s)


def test_only_a_probe_is_another_base() -> None:
    assert base_of(BY_CATALOGUE) == ""
    assert base_of(BY_PROBE) == BY_PROBE.path_class
    way = Way(BY_PROBE, 0, 1.0, 1.0)
    assert way.wire(1e9, 1.0, "direct").base == BY_PROBE.path_class


def test_what_was_learned_is_not_applied_to_a_probe_that_says_the_same() -> None:
    clock = Clock()
    learner = Learner(clock)
    moves(learner, clock, BY_CATALOGUE, 30, 1e9)
    assert expected_s(learner, BY_CATALOGUE, 1e9) == pytest.approx(1.0, rel=0.15)
    assert expected_s(learner, BY_PROBE, 1e9) == pytest.approx(1.0, rel=0.05)
    moves(learner, clock, BY_PROBE, 10, 1e9, seed=1)
    assert expected_s(learner, BY_PROBE, 1e9) == pytest.approx(1.0, rel=0.1)


def test_it_is_not_applied_to_the_next_probe_either_and_comes_back_with_its_base() -> None:
    clock = Clock()
    learner = Learner(clock)
    moves(learner, clock, BY_CATALOGUE, 30, 1e9)
    moves(learner, clock, BY_PROBE, 30, 0.2e9)
    assert expected_s(learner, BY_PROBE, 1e9) == pytest.approx(5.0, rel=0.15)
    again = Link(
        "a", "b", "mooncake", "tcp_100g.probed.1", 1e-4, 0.2e9, 1e8, 2e-6, 0.0, 0.0, 2e-3,
        evidence=Evidence.PROBE,
    )  # fmt: skip
    assert expected_s(learner, again, 1e9) == pytest.approx(5.0, rel=0.05)
    clock.now_s += 20.0  # the probes are gone: what was learned of the catalogue holds as ever
    assert expected_s(learner, BY_CATALOGUE, 1e9) == pytest.approx(1.0, rel=0.2)


def test_moves_by_another_base_say_nothing() -> None:
    speeds = LinkSpeeds()
    for now_s in range(5):
        speeds.observe(AB, OLD, 1.0, float(now_s))
    assert speeds.slowness([AB], 5.0)[0] > 8.0
    assert speeds.slowness([CD], 5.0) == [1.0]
    speeds.based(AB, "probed")
    assert speeds.slowness([AB], 5.0) == [1.0]  # at once: no half-life passes first
    speeds.observe(AB, OLD, 1.0, 6.0)  # one that was under way
    assert speeds.told() == []
    for now_s in range(7, 12):
        speeds.observe(AB, NEW, 3.0, float(now_s))
    assert speeds.slowness([AB], 12.0)[0] == pytest.approx(3.0, rel=0.2)


def test_a_host_is_not_slow_by_moves_of_an_old_base() -> None:
    speeds = LinkSpeeds()
    ab, ac = AB, Path("a", "c", "mooncake")
    for now_s in range(5):
        speeds.observe(ab, OLD, 1.0, float(now_s))
    assert speeds.slowness([ac], 5.0)[0] > 3.0
    speeds.based(ab, "probed")
    assert speeds.slowness([ac], 5.0) == [1.0]


def test_an_overdue_move_by_another_base_says_nothing() -> None:
    speeds = LinkSpeeds()
    for move in "mno":
        speeds.begin(move, AB, 0.0, Wire(0.01))
    assert speeds.slowness([AB], 1.0)[0] > 3.0
    speeds.based(AB, "probed")
    assert speeds.slowness([AB], 1.0) == [1.0]


def test_what_other_routers_tell_counts_once_both_have_the_probe() -> None:
    clock = Clock()
    teller, hearer = Learner(clock), Learner(clock)
    moves(teller, clock, BY_CATALOGUE, 5, 1e9)
    hearer.hear("t", teller.snapshot())
    assert expected_s(hearer, BY_PROBE, 1e9) == pytest.approx(1.0, rel=0.05)
    moves(teller, clock, BY_PROBE, 5, 0.25e9)
    hearer.hear("t", teller.snapshot())
    assert expected_s(hearer, BY_PROBE, 1e9) == pytest.approx(4.0, rel=0.2)
