"""What moves teach of links: coefficients from few, classes from their members, and late ones at least."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.terms.pool import SETTLED
from kvferry.models.terms.transfer import Transfers, key_of
from kvferry.models.terms.way import Way
from kvferry.policy.link import Link

BYTES = (3e6, 3e7, 3e8, 1e9)
WHOLE = (1.0, 0.0)


def link(src: str = "a", dst: str = "b", path_class: str = "tcp") -> Link:
    return Link(src, dst, "nixl", path_class, 1e-4, 2e9, 1e9, 2e-6, handoff_s=2e-3)


def moved(transfers: Transfers, count: int, truth: tuple[float, float, float], *, start_s: float = 0.0,
          way: Way | None = None, seed: int = 0, noise: float = 0.1) -> float:  # fmt: skip
    """Moves of many sizes, one a second, each of which took what `truth` (offset, factors) says."""
    rng, way = random.Random(seed), way or Way(link(), 0, 1000.0, 4096.0)
    for place in range(count):
        moved_bytes, descriptors = rng.choice(BYTES), rng.choice((10.0, 1000.0, 30_000.0))
        wire, around_s = way.wire(moved_bytes, descriptors), way.around_s(moved_bytes)
        took_s = truth[0] + wire.bytes_s * truth[1] + wire.posting_s * truth[2]
        seen_s = (around_s + took_s) * math.exp(rng.gauss(0.0, noise))
        transfers.seen(way, "direct", wire, WHOLE, around_s, seen_s, start_s + place + 1.0)
    return start_s + count


def believed(transfers: Transfers, now_s: float, of: Link | None = None) -> tuple[float, ...]:
    (belief,) = transfers.beliefs([of or link()], ["direct"], now_s)
    return tuple(belief.mean.tolist())


def test_without_moves_the_catalogue_holds() -> None:
    assert believed(Transfers(), 0.0) == pytest.approx((0.0, 1.0, 1.0))


@pytest.mark.parametrize("truth", [(0.01, 2.5, 0.5), (0.0, 0.4, 3.0), (-1e-3, 1.0, 1.0), (0.03, 1.0, 8.0)])
def test_thirty_moves_tell_offset_bytes_and_descriptors_apart(truth: tuple[float, float, float]) -> None:
    transfers = Transfers()
    now_s = moved(transfers, 30, truth)
    offset_s, by_byte, by_descriptor = believed(transfers, now_s)
    assert offset_s == pytest.approx(truth[0], abs=4e-3)
    assert by_byte == pytest.approx(truth[1], rel=0.15)
    assert by_descriptor == pytest.approx(truth[2], rel=0.25, abs=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_a_link_a_hundred_times_slower_than_its_catalogue_is_known_by_rough_moves(seed: int) -> None:
    """On a path of 200 Mbit/s that the catalogue took for loopback, true moves looked odd, and it stayed at
    a tenth of what they took."""
    transfers, rng = Transfers(), random.Random(seed)
    way, now_s = Way(link(), 0, 1000.0, 4096.0), 0.0
    for _ in range(80):
        now_s += 1.0
        wire = way.wire(rng.choice((1e5, 5e5, 2e6, 1e7)), rng.choice((8.0, 16.0, 60.0)))
        took_s = 80.0 * (wire.bytes_s + wire.posting_s) * math.exp(rng.gauss(0.0, 0.5))
        if rng.random() < 0.1:
            took_s *= 5.0
        transfers.seen(way, "direct", wire, WHOLE, way.around_s(1e6), way.around_s(1e6) + took_s, now_s)
    offset_s, by_byte, _ = believed(transfers, now_s)
    assert 0.45 < by_byte / 80.0 < 2.2
    assert abs(offset_s) < 0.02


def test_a_new_link_is_taken_to_be_like_others_of_its_class() -> None:
    transfers, now_s = Transfers(), 0.0
    for place, dst in enumerate("bcd"):
        way = Way(link(dst=dst), 0, 1000.0, 4096.0)
        now_s = moved(transfers, 20, (0.0, 3.0, 1.0), way=way, start_s=now_s, seed=place)
    assert believed(transfers, now_s, link(dst="e"))[1] == pytest.approx(3.0, rel=0.15)
    assert believed(transfers, now_s, link(dst="e", path_class="other"))[1] == pytest.approx(1.0)
    (belief,) = transfers.beliefs([link(dst="e")], ["sliced"], now_s)
    assert belief.mean[1] == pytest.approx(1.0)
    now_s = moved(transfers, 30, (0.0, 1.0, 1.0), way=Way(link(dst="e"), 0, 1e3, 4096.0), start_s=now_s)
    assert believed(transfers, now_s, link(dst="e"))[1] == pytest.approx(1.0, rel=0.15)


def test_others_on_the_link_explain_their_part() -> None:
    transfers = Transfers()
    now_s = moved(transfers, 30, (0.0, 2.0, 1.0), way=Way(link(), 4, 1000.0, 4096.0))
    assert believed(transfers, now_s)[1] == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("off", [30.0, 1 / 30.0])
def test_one_outlier_among_steady_moves_changes_little(off: float) -> None:
    transfers = Transfers()
    now_s = moved(transfers, 10, (0.0, 1.0, 1.0))
    before = believed(transfers, now_s)
    way = Way(link(), 0, 1000.0, 4096.0)
    transfers.whole(way, "direct", way.wire(1e9, 10.0), 0.5 * off, now_s + 1.0)
    transfers.pool.turn(now_s + 60.0)
    assert believed(transfers, now_s + 1.0)[1] == pytest.approx(before[1], rel=0.05)


def test_what_stays_slow_is_learned_in_the_end_and_what_became_fast_at_once() -> None:
    transfers = Transfers()
    now_s = moved(transfers, 50, (0.0, 1.0, 1.0))
    soon_s = moved(transfers, 10, (0.0, 10.0, 10.0), start_s=now_s)
    assert believed(transfers, soon_s)[1] < 2.0  # `LinkSpeeds` follows that
    late_s = moved(transfers, 90, (0.0, 10.0, 10.0), start_s=soon_s)
    assert believed(transfers, late_s)[1] == pytest.approx(10.0, rel=0.2)
    assert transfers.pool.changes == 1
    end_s = moved(transfers, 12, (0.0, 1.0, 1.0), start_s=late_s)
    assert believed(transfers, end_s)[1] < 1.5
    assert transfers.pool.changes == 2


def test_little_evidence_fades_soon_and_much_of_it_late() -> None:
    few, many = Transfers(), Transfers()
    few_s, many_s = moved(few, 1, (0.0, 5.0, 5.0)), moved(many, 60, (0.0, 5.0, 5.0))
    assert believed(few, few_s + 120.0)[1] < 2.5
    assert believed(many, many_s + 120.0)[1] == pytest.approx(5.0, rel=0.15)


numbers = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, 1e-300, 1e300]))


@given(st.lists(st.tuples(numbers, numbers, numbers, numbers, numbers), max_size=5))
def test_nothing_that_is_said_makes_a_belief_absurd(told: list[tuple[float, ...]]) -> None:
    transfers, way = Transfers(), Way(link(), 0, 1000.0, 4096.0)
    for count, (moved_bytes, descriptors, seen_s, around_s, hidden_s) in enumerate(told):
        wire = way.wire(moved_bytes, descriptors)
        transfers.seen(way, "direct", wire, (0.5, hidden_s), around_s, seen_s, float(count))
        transfers.whole(way, "direct", wire, seen_s, float(count))
        offset_s, by_byte, by_descriptor = believed(transfers, float(count))
        assert -2.1e-3 - 1e-9 <= offset_s < math.inf
        assert 0.0 < by_byte < math.inf
        assert 0.0 < by_descriptor < math.inf


def test_the_spread_narrows_with_moves() -> None:
    transfers, sds = Transfers(), []
    now_s = 0.0
    for _ in range(4):
        (belief,) = transfers.beliefs([link()], ["direct"], now_s)
        sds.append(float(belief.covariance[1, 1]))
        now_s = moved(transfers, 5, (0.0, 1.0, 1.0), start_s=now_s)
        transfers.pool.turn(now_s + 100.0)
    assert sds == sorted(sds, reverse=True)
    assert sds[-1] < 0.1 * sds[0]
    assert transfers.pool.members.evidence(key_of(link(), "direct"), now_s).sums.count > SETTLED
