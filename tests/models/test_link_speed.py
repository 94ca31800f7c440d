"""What moves show of a link: soon believed when it changes, never by one of them alone, and forgotten."""

import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.link_speed import HALF_LIFE_S, LinkSpeeds
from kvferry.models.terms.hidden import nearest_s, wire_s
from kvferry.models.terms.way import Path, Wire

AB, AC, AD, EB, EC = (Path(src, dst, "mooncake") for src, dst in ("ab", "ac", "ad", "eb", "ec"))
USUAL = Wire(0.15, 0.05)
numbers = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, 1e-9, 1e300]))


def seen(factors: Iterable[float], path: Path = AB, every_s: float = 1.0, into: LinkSpeeds | None = None,
         start_s: float = 0.0) -> tuple[LinkSpeeds, float]:  # fmt: skip
    """Moves that took `factors` times what they should, one after the other; and when the last one ended."""
    speeds, now_s = into or LinkSpeeds(), start_s
    for factor in factors:
        now_s += every_s
        speeds.observe(path, USUAL, 0.2 * factor, now_s)
    return speeds, now_s


def believed(speeds: LinkSpeeds, time_s: float, path: Path = AB) -> float:
    (slowness,) = speeds.slowness([path], time_s)
    return slowness


def test_without_moves_the_catalogue_holds() -> None:
    assert LinkSpeeds().slowness([AB, EC], 5.0) == [1.0, 1.0]
    assert LinkSpeeds().slowness([], 5.0) == []


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0, 10.0, 60.0])
def test_moves_that_agree_are_believed(factor: float) -> None:
    speeds, now_s = seen([factor] * 5)
    assert math.log(believed(speeds, now_s)) == pytest.approx(math.log(factor), rel=0.15, abs=0.01)


@pytest.mark.parametrize("before", [0, 1, 2, 5, 100])
@pytest.mark.parametrize("every_s", [0.1, 1.0, 10.0])
def test_one_move_alone_is_not_believed(before: int, every_s: float) -> None:
    speeds, now_s = seen([1.0] * before + [30.0], every_s=every_s)
    assert believed(speeds, now_s) < 1.05
    speeds, now_s = seen([1.0] * before + [0.3], every_s=every_s)
    assert believed(speeds, now_s) > 0.95


@pytest.mark.parametrize("every_s", [0.1, 1.0])
def test_one_fast_move_does_not_clear_a_slow_link(every_s: float) -> None:
    speeds, now_s = seen([10.0] * 5 + [1.0], every_s=every_s)
    assert believed(speeds, now_s) > 6.0


@pytest.mark.parametrize("before", [0, 1, 5, 500])
@pytest.mark.parametrize("every_s", [0.1, 1.0, 10.0])
def test_a_tenfold_change_is_believed_within_three_moves_and_so_is_its_end(
    before: int, every_s: float
) -> None:
    speeds, now_s = seen([1.0] * before + [10.0] * 3, every_s=every_s)
    assert believed(speeds, now_s) > 6.0
    speeds, now_s = seen([10.0] * 2 + [1.0] * 3, into=speeds, start_s=now_s, every_s=every_s)
    assert believed(speeds, now_s) < 1.5


def test_noise_is_evened_out() -> None:
    rng = random.Random(7)
    speeds, now_s, off = LinkSpeeds(), 0.0, []
    for _ in range(300):
        speeds, now_s = seen([2.0 * rng.lognormvariate(0.0, 0.3)], into=speeds, start_s=now_s)
        off.append(abs(math.log(believed(speeds, now_s) / 2.0)))
    assert sorted(off[10:])[len(off) // 2] < 0.25
    assert max(off[10:]) < 0.7


@given(st.lists(st.floats(0.3, 100.0), min_size=1, max_size=8), st.floats(0, 300), st.floats(0, 300))
def test_a_belief_fades_and_the_link_is_tried_again(factors: list[float], one: float, other: float) -> None:
    speeds, now_s = seen(factors)
    sooner, later = (math.log(believed(speeds, now_s + wait_s)) for wait_s in sorted((one, other)))
    assert abs(later) <= abs(sooner) + 1e-9
    assert sooner * later >= 0.0
    start = math.log(believed(speeds, now_s))
    assert abs(math.log(believed(speeds, now_s + 2 * HALF_LIFE_S))) <= abs(start) / 2 + 1e-9


def test_after_it_has_faded_one_move_is_enough_either_way() -> None:
    for factor, low, high in ((10.0, 4.0, 11.0), (1.0, 0.9, 1.3)):
        speeds, now_s = seen([10.0] * 5, every_s=0.2)
        assert believed(speeds, now_s + 90.0) < 1.2
        speeds, now_s = seen([factor], into=speeds, start_s=now_s, every_s=90.5)
        assert low < believed(speeds, now_s) < high


def test_other_links_of_a_host_tell_of_one_that_was_not_tried() -> None:
    speeds, _ = seen([10.0] * 3)
    speeds, now_s = seen([10.0] * 3, AC, into=speeds)
    assert believed(speeds, now_s, AD) > 3.0  # from the same source
    assert believed(speeds, now_s, EB) > 2.0  # to one of the same targets
    assert believed(speeds, now_s, Path("e", "f", "mooncake")) == 1.0
    assert believed(speeds, now_s, Path("a", "d", "nixl")) == 1.0
    speeds, now_s = seen([10.0] * 2, AD, into=speeds, start_s=now_s)
    assert believed(speeds, now_s, AD) > 7.0


def test_a_links_own_moves_outweigh_what_others_show() -> None:
    speeds, _ = seen([10.0] * 5)
    speeds, _ = seen([10.0] * 5, AC, into=speeds)
    speeds, now_s = seen([1.0] * 5, AD, into=speeds)
    assert believed(speeds, now_s, AD) < 1.4
    assert believed(speeds, now_s, AB) > 6.0


def test_moves_that_are_long_overdue_tell_before_they_end() -> None:
    speeds, now_s = seen([1.0] * 3)
    for name in ("one", "two", "three", "four"):
        speeds.begin(name, AB, now_s + 1.0, USUAL)
    assert not list(speeds.overdue(now_s + 1.5))
    assert believed(speeds, now_s + 1.5) < 1.1
    assert [path for path, _ in speeds.overdue(now_s + 3.0)] == [AB] * 4
    assert believed(speeds, now_s + 3.0) > 5.0
    speeds.end("one")
    for name in ("two", "three", "four"):
        speeds.end(name)
        speeds.end(name)
    assert believed(speeds, now_s + 3.5) < 1.1


def test_one_overdue_move_alone_says_little_and_none_makes_a_slow_link_fast() -> None:
    speeds, now_s = seen([1.0] * 3)
    speeds.begin("one", AB, now_s, USUAL)
    assert believed(speeds, now_s + 60.0) < 1.5
    speeds, now_s = seen([50.0] * 5)
    slow = believed(speeds, now_s)
    for name in "abcdefgh":
        speeds.begin(name, AB, now_s, USUAL)
    assert believed(speeds, now_s + 1.0) >= 0.8 * slow


def test_milliseconds_are_no_evidence() -> None:
    speeds = LinkSpeeds()
    for time_s in range(9):
        speeds.observe(AB, Wire(0.0005), 0.003, time_s)
    assert believed(speeds, 9.0) < 1.6
    for time_s in range(9, 18):
        speeds.observe(AB, Wire(0.0005), 0.5, time_s)
    assert believed(speeds, 18.0) > 20.0


@given(st.lists(st.tuples(st.sampled_from([AB, AC, EB]), numbers, numbers, st.floats(0, 400))))
def test_whatever_is_told_every_belief_is_a_bounded_factor(
    told: list[tuple[Path, float, float, float]],
) -> None:
    speeds = LinkSpeeds()
    for count, (path, expected_s, took_s, time_s) in enumerate(told):
        speeds.observe(path, Wire(expected_s), took_s, time_s)
        speeds.begin(f"{count}", path, took_s, Wire(expected_s))
        for slowness in speeds.slowness([AB, AC, AD, EB, EC], time_s):
            assert 0.199 <= slowness <= 1001.0
    assert len(speeds.slowness([AB], 1000.0)) == 1


@given(
    st.lists(st.tuples(st.sampled_from([AB, AC, EB]), st.floats(0.01, 100)), min_size=1, max_size=12),
    st.data(),
)
def test_a_move_that_took_longer_never_makes_a_link_look_faster(
    told: list[tuple[Path, float]], data: st.DataObject
) -> None:
    worse = data.draw(st.integers(0, len(told) - 1))
    by = data.draw(st.floats(1, 100))

    def after(factors: list[float]) -> list[float]:
        speeds = LinkSpeeds()
        for time_s, ((path, _), factor) in enumerate(zip(told, factors, strict=True)):
            speeds.observe(path, Wire(1.0), factor, time_s)
        return speeds.slowness([AB, AC, AD, EB], len(told))

    factors = [factor for _, factor in told]
    slower = [factor * (by if i == worse else 1.0) for i, factor in enumerate(factors)]
    for before, now in zip(after(factors), after(slower), strict=True):
        assert now >= before * (1.0 - 1e-9)


@given(
    wire=st.floats(1e-4, 100),
    prefill_s=st.floats(0, 10),
    new=st.integers(1, 50_000),
    chunk=st.sampled_from([256, 2048, 8192]),
)
def test_the_wire_is_found_behind_the_part_that_is_seen(
    wire: float, prefill_s: float, new: int, chunk: int
) -> None:
    first = min(chunk / new, 1.0)
    last = 1.0 - (math.ceil(new / chunk) - 1) * first
    visible = max(
        wire - prefill_s * (1 - first), wire * last, wire * min(first + last, 1.0) - prefill_s * last
    )
    assert wire_s(visible, prefill_s, new, chunk) == pytest.approx(wire, rel=1e-6)
    assert wire_s(wire, prefill_s, 1, chunk) == wire


def test_a_hidden_move_is_no_evidence_unless_it_should_have_been_seen() -> None:
    hidden = {"visible_s": 0.0, "prefill_s": 1.0, "new_tokens": 20_480, "chunk_tokens": 2048}
    assert nearest_s(0.04, **hidden) == 0.04
    assert nearest_s(0.5, **hidden) == pytest.approx(0.05)  # its last tenth alone would have shown 50 ms
    assert nearest_s(0.1, 0.1, 0.5, 1000, 2048) == 0.1
    assert nearest_s(0.1, 0.5, 0.5, 1000, 2048) == pytest.approx(0.495)


@given(st.floats(1e-4, 10), st.floats(0, 10), st.floats(0, 10), st.integers(1, 50_000))
def test_what_is_nearest_grows_with_what_is_seen(
    expected_s: float, visible_s: float, prefill_s: float, new: int
) -> None:
    found = [nearest_s(expected_s, visible_s + more, prefill_s, new, 2048) for more in (0.0, 0.1, 10.0)]
    assert found == sorted(found)
    assert found[0] >= 0.0


@pytest.mark.parametrize("late", [False, True])
def test_a_few_slow_moves_over_several_links_of_a_host_are_believed(late: bool) -> None:
    """A whole host that became slow: each of its links is seldom used, together they tell soon."""
    speeds, now_s = LinkSpeeds(), 0.0
    for path in (AB, AC, AD) * 3:
        speeds, now_s = seen([1.0], path, into=speeds, start_s=now_s, every_s=2.0)
    for count, path in enumerate((AB, AC, AB, AC, AD, AD)):
        if late:
            speeds.begin(f"{count}", path, now_s - 3.0, USUAL)
        elif count < 4:
            speeds, now_s = seen([10.0], path, into=speeds, start_s=now_s, every_s=0.5)
    assert min(speeds.slowness([AB, AC], now_s)) > 5.0
    assert believed(speeds, now_s, Path("a", "f", "mooncake")) > 3.0
    if not late:  # one that still looked fast is not after two
        speeds, now_s = seen([10.0] * 2, AD, into=speeds, start_s=now_s, every_s=0.5)
        assert believed(speeds, now_s, AD) > 5.0


def test_one_slow_target_does_not_make_its_sources_slow() -> None:
    speeds, now_s = LinkSpeeds(), 0.0
    for _ in range(6):
        for path, factor in ((AB, 10.0), (AC, 1.0), (AD, 1.0), (EB, 10.0), (EC, 1.0)):
            speeds, now_s = seen([factor], path, into=speeds, start_s=now_s, every_s=0.5)
    assert min(speeds.slowness([AB, EB], now_s)) > 6.0
    assert max(speeds.slowness([AC, AD, EC], now_s)) < 1.5
    assert believed(speeds, now_s, Path("f", "b", "mooncake")) > 6.0
    assert believed(speeds, now_s, Path("a", "f", "mooncake")) < 1.5
