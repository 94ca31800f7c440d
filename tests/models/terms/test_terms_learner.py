"""What all terms learn together, and what routers tell each other of it."""

import json
import math
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.evidence import Evidence
from kvferry.models.terms.learner import Learner, Move
from kvferry.models.terms.told import MOST_BYTES
from kvferry.models.terms.transfer import key_of
from kvferry.models.terms.way import Way
from kvferry.policy.kvshape import KVShape
from kvferry.policy.link import Link
from kvferry.policy.worker import Role, Speed, Worker

LINK = Link("a", "b", "nixl", "tcp", 1e-4, 2e9, 1e9, 2e-6, handoff_s=2e-3)
WORKER = Worker("w", "http://w", Role.PREFILL, "m", KVShape(2, 2, 64))


class Clock:
    def __init__(self, now_s: float = 1e9) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def taught(learner: Learner, clock: Clock, count: int, factor: float = 1.0, seed: int = 0,
           link: Link = LINK, every_s: float = 1.0) -> None:  # fmt: skip
    rng, way = random.Random(seed), Way(link, 0, 1000.0, 4096.0)
    for _ in range(count):
        clock.now_s += every_s
        moved = rng.choice((1e7, 1e8, 1e9))
        wire = way.wire(moved, 100.0)
        seen_s = way.around_s(moved) + factor * (wire.bytes_s + wire.posting_s) * rng.lognormvariate(0, 0.05)
        learner.moved(Move(way, "direct", moved, 100.0, seen_s=seen_s))
        learner.prefilled(WORKER, WORKER.speed, 1000.0 * rng.random() + 1.0, 0.0, 0.1)
        learner.repacked("staged", 1e-11, moved, factor * moved * 1e-10)


def cost(learner: Learner, link: Link = LINK) -> float:
    """What bytes are thought to take now, over what the catalogue says."""
    state = learner.state("m", (link,), ("direct",))
    return float(state["link_slowness"][0] * state["link_byte_factor"][0])


def test_it_is_evidence_that_routers_can_share() -> None:
    evidence: Evidence = Learner(Clock())
    assert evidence.name == "terms"


def test_a_router_that_hears_of_a_link_knows_it_and_tells_only_its_own() -> None:
    clock = Clock()
    one, other = Learner(clock), Learner(clock)
    taught(one, clock, 30, 3.0)
    told = one.snapshot()
    other.hear("one", told)
    assert cost(other) == pytest.approx(3.0, rel=0.1)
    clock.now_s += 10.0
    (speed,) = other.worker_speeds([(WORKER, WORKER.speed)])
    assert speed.prefill_s_per_token == pytest.approx(
        one.worker_speeds([(WORKER, WORKER.speed)])[0].prefill_s_per_token, rel=1e-3
    )
    assert other.repack_s_per_byte(["staged"], [1e-11])[0] == pytest.approx(3e-10, rel=0.1)
    assert json.loads(other.snapshot())["pools"]["transfer"] == []
    other.weigh("one", 0.0)
    assert cost(other) == pytest.approx(1.0)


def test_routers_that_each_saw_a_part_believe_what_one_would_that_saw_all() -> None:
    clock = Clock()
    routers, alone = [Learner(clock) for _ in range(3)], Learner(clock)
    rng, way = random.Random(1), Way(LINK, 0, 1000.0, 4096.0)
    for place in range(60):
        clock.now_s += 0.5
        moved = rng.choice((1e7, 1e8, 1e9))
        wire = way.wire(moved, 100.0)
        seen_s = way.around_s(moved) + 2.5 * (wire.bytes_s + wire.posting_s) * rng.lognormvariate(0, 0.05)
        for learner in (routers[place % 3], alone):
            learner.moved(Move(way, "direct", moved, 100.0, seen_s=seen_s))
    told = [learner.snapshot() for learner in routers]
    for place, learner in enumerate(routers):
        for other in range(3):
            if other != place:
                learner.hear(f"r{other}", told[other])
                learner.hear(f"r{other}", told[other])  # twice is once
    for learner in routers:
        assert cost(learner) == pytest.approx(cost(alone), rel=0.03)


def test_what_another_router_saw_change_is_no_longer_believed_here() -> None:
    clock = Clock()
    one, other = Learner(clock), Learner(clock)
    taught(one, clock, 40, 10.0)
    taught(other, clock, 40, 10.0)
    other.hear("one", one.snapshot())
    taught(one, clock, 8, 1.0, seed=2)
    assert one.changes()["transfer"] == 1
    other.hear("one", one.snapshot())
    assert cost(other) < 2.0


def test_of_two_other_routers_the_one_that_saw_a_link_change_is_believed() -> None:
    clock = Clock()
    slow, fast, third = (Learner(clock) for _ in range(3))
    taught(slow, clock, 60, 10.0)
    taught(fast, clock, 40, 10.0)
    fast.transfers.pool.changed(key_of(LINK, "direct"), clock.now_s)
    taught(fast, clock, 8, 1.0, seed=2)
    for name, told in (("slow", slow), ("fast", fast)):
        third.hear(name, told.snapshot())
    clock.now_s += 6.0
    (factor,) = third.state("m", (LINK,), ("direct",))["link_byte_factor"]
    assert factor == pytest.approx(1.0, rel=0.3)


@pytest.mark.parametrize("ahead_s", [-86_400.0, -30.0, 30.0, 86_400.0])
def test_a_router_whose_clock_is_off_harms_nobody(ahead_s: float) -> None:
    clock = Clock()
    one, other = Learner(clock), Learner(lambda: clock.now_s + ahead_s)
    for factor, tolerance in ((1.0, 0.1), (10.0, 0.3), (1.0, 0.3)):
        for _ in range(60):
            taught(one, clock, 1, factor, seed=int(clock.now_s))
            taught(other, clock, 1, factor, seed=int(clock.now_s))
            one.hear("other", other.snapshot())
            other.hear("one", one.snapshot())
        clock.now_s += 6.0
        assert cost(one) == pytest.approx(factor, rel=tolerance)
        assert cost(other) == pytest.approx(factor, rel=tolerance)


def test_evidence_of_a_clock_that_was_set_back_later_harms_nobody() -> None:
    """Its router's word on the time is right by now, and its samples still lie a day ahead."""
    clock = Clock()
    one, other = Learner(clock), Learner(lambda: clock.now_s + 86_400.0)
    taught(one, clock, 30)
    taught(other, clock, 30, 5.0)
    other.transfers.pool.changed(key_of(LINK, "direct"), clock.now_s + 86_400.0)
    told = json.loads(other.snapshot())
    told["told_s"] = clock.now_s
    for learner in (one, later := Learner(clock)):
        learner.hear("other", json.dumps(told).encode())
        learner.weigh("other", 0.0)
        taught(learner, clock, 30, 2.0, seed=3)
        clock.now_s += 6.0
        assert cost(learner) == pytest.approx(2.0, rel=0.15)
        ahead = [each.changed_s for each in learner.transfers.pool.members.own.values()]
        assert max(ahead) <= clock.now_s
    # and what it takes back after a restart does not outweigh what it sees then
    later.restore(json.dumps(told).encode())
    taught(later, clock, 60, 2.0, seed=4)
    clock.now_s += 6.0
    assert cost(later) == pytest.approx(2.0, rel=0.2)


def test_what_was_known_before_a_restart_is_known_after_it() -> None:
    clock = Clock()
    before = Learner(clock)
    taught(before, clock, 40, 3.0)
    after = Learner(clock)
    revision = after.revision
    after.restore(before.snapshot())
    assert after.revision > revision
    clock.now_s += 10.0
    assert cost(after) == pytest.approx(cost(before), rel=0.02)


def test_late_and_lost_moves_are_taken_for_slow_ones_and_lost_in_time_for_nothing() -> None:
    clock = Clock()
    learner, way = Learner(clock), Way(LINK, 0, 1000.0, 4096.0)
    taught(learner, clock, 10)
    for name in "abc":
        learner.sent(name, way, "direct", 4e8, 100.0, clock.now_s)
        clock.now_s += 0.25
        learner.lost(name)
    assert cost(learner) == pytest.approx(1.0, rel=0.1)
    for name in "abc":
        learner.sent(name, way, "direct", 4e8, 100.0, clock.now_s)
        clock.now_s += 4.0
        learner.lost(name)
        learner.lost(name)
    assert cost(learner) > 5.0
    assert learner.counts()["lost_moves"] == 3


def test_a_slow_link_is_told_to_other_routers_at_once() -> None:
    clock = Clock()
    one, other = Learner(clock), Learner(clock)
    taught(one, clock, 40)
    taught(other, clock, 40)
    taught(one, clock, 3, 10.0)
    assert cost(one) > 5.0
    other.hear("one", one.snapshot())
    clock.now_s += 0.5
    assert cost(other) > 5.0


def test_what_it_learned_from_and_how_that_fares_can_be_told() -> None:
    clock = Clock()
    learner = Learner(clock)
    assert set(learner.counts().values()) == {0}
    assert learner.drift() == {}
    taught(learner, clock, 40, 2.0)
    learner.answered("m", split=True, ttft_s=(0.1, 0.2, 0.3), itl_s=(0.01, 0.02, 0.03))
    counts = learner.counts()
    assert counts == {
        "transfer": 40, "prefill": 40, "repack": 40, "link_speed": 40, "lost_moves": 0, "ttft": 1, "itl": 1,
    }  # fmt: skip
    drift = learner.drift()
    assert set(drift) == {"transfer", "prefill", "repack", "ttft", "itl"}
    assert abs(drift["transfer"]) < 0.4
    assert drift["ttft"] > 0.0


def spoiled(**changed: Any) -> bytes:
    clock = Clock()
    learner = Learner(clock)
    taught(learner, clock, 2)
    return msgspec.json.encode({**json.loads(learner.snapshot()), **changed})


KEY = ["a", "b", "nixl", "direct", "tcp"]


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"[]",
        b"\xff",
        b"x" * (MOST_BYTES + 1),
        spoiled(schema="kvferry.terms.v2"),
        spoiled(more=1),
        spoiled(pools={"transfer": [[KEY, [1.0] * 3, 0.0, 0.0]]}),
        spoiled(pools={"transfer": [[KEY, [-1.0] * 11, 0.0, 0.0]]}),
        spoiled(pools={"transfer": [[KEY, [1e200] * 11, 0.0, 0.0]]}),
        spoiled(pools={"transfer": [[KEY, ["1"] * 11, 0.0, 0.0]]}),
        spoiled(pools={"transfer": [[[], [1.0] * 11, 0.0, 0.0]]}),
        spoiled(pools={"prefill": [[["x" * 300], [1.0] * 11, 0.0, 0.0]]}),
        spoiled(moves=[["a", "b", "nixl", "direct", -1.0, 0.0, 1.0, 0.005, 0.0]]),
        spoiled(moves=[["a", "b", "nixl"]]),
    ],
)
def test_what_no_router_tells_is_refused_and_changes_nothing(told: bytes) -> None:
    clock = Clock()
    learner = Learner(clock)
    taught(learner, clock, 20, 2.0)
    before, snapshot = cost(learner), learner.snapshot()
    for read in (lambda: learner.hear("other", told), lambda: learner.restore(told)):
        with pytest.raises(ValueError):  # noqa: PT011
            read()
    assert (cost(learner), learner.snapshot()) == (before, snapshot)


def test_a_snapshot_of_many_links_is_still_small() -> None:
    clock = Clock()
    learner = Learner(clock)
    for place in range(700):
        link = Link(f"host-{place}.a-long-name.example", "b" * 60, "nixl", "tcp", 1e-4, 2e9, 1e9, 2e-6)
        taught(learner, clock, 2, link=link, every_s=0.01)
    told = learner.snapshot()
    assert len(told) < MOST_BYTES
    assert "host-699.a-long-name.example" in told.decode()
    Learner(clock).hear("other", told)


numbers = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -1.0, 1e-300, 1e300]))
some = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, 1e-300, 1e300]))


@given(st.lists(st.tuples(numbers, numbers, some, some, some, st.booleans()), max_size=8))
def test_whatever_is_missing_or_absurd_decisions_get_finite_numbers(told: list[tuple[Any, ...]]) -> None:
    clock = Clock()
    learner, way = Learner(clock), Way(LINK, 1, 1000.0, 256.0)
    for seen_s, busy_s, moved, descriptors, prefill_s, guessed in told:
        clock.now_s += 1.0
        learner.sent("a", way, "direct", moved, descriptors, clock.now_s - 10.0)
        learner.moved(Move(way, "direct", moved, descriptors, busy_s, seen_s, prefill_s, guessed=guessed))
        learner.lost("a")
        learner.answered("m", split=True, ttft_s=(seen_s, busy_s, prefill_s), itl_s=(moved, None, seen_s))
        learner.prefilled(WORKER, WORKER.speed, moved, descriptors, prefill_s)
        learner.repacked("staged", 1e-11, moved, prefill_s)
        for column in learner.state("m", (LINK,), ("direct",)).values():
            assert all(math.isfinite(value) for value in column.tolist())
        (speed,) = learner.worker_speeds([(WORKER, Speed())])
        assert math.isfinite(speed.prefill_base_s + speed.prefill_s_per_token)
        learner.hear("self", learner.snapshot())
