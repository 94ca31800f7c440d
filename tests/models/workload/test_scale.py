"""Laws of scaling, mixing, repeating and halving."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.workload.base import Workload
from kvferry.models.workload.merge import merge, reblocked
from kvferry.models.workload.scale import at_rate, first_half, mix, second_half


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    gaps = draw(st.lists(st.floats(0, 50), min_size=2, max_size=25))
    gaps[-1] += 0.5
    count = len(gaps)
    blocks = draw(st.lists(st.lists(st.integers(-5, 2**62), max_size=4), min_size=count, max_size=count))
    block_tokens = draw(st.sampled_from([16, 32, 512]))
    return Workload.of(
        "drawn",
        np.cumsum(gaps),
        [len(row) * block_tokens + 1 for row in blocks],
        list(range(1, count + 1)),
        blocks=blocks,
        block_tokens=block_tokens,
        session=draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count)),
    )


def pattern(workload: Workload) -> list[list[tuple[int, int]]]:
    """Which earlier request each block was first seen in, and where: sharing without names."""
    seen: dict[int, tuple[int, int]] = {}
    return [
        [seen.setdefault(block, (row, place)) for place, block in enumerate(workload.blocks_of(row))]
        for row in range(len(workload))
    ]


def cv(times_s: np.ndarray) -> float:
    gaps = np.diff(times_s)
    return float(gaps.std() / gaps.mean())


@given(workloads(), st.floats(0.01, 100))
def test_all_at_another_rate_keep_their_bursts(workload: Workload, rate_rps: float) -> None:
    scaled = at_rate(workload, rate_rps)
    assert len(scaled) == len(workload)
    assert scaled.arrival_s[-1] < len(workload) / rate_rps
    assert cv(scaled.arrival_s) == pytest.approx(cv(workload.arrival_s), rel=1e-6)
    assert pattern(scaled) == pattern(workload)


@pytest.mark.parametrize("gap_s", [0.0, 2e-313, 1e-300, 1e-12])
def test_what_comes_at_once_still_does(gap_s: float) -> None:
    workload = Workload.of("w", [0.0, gap_s, 0.5], [1, 1, 1], [1, 2, 3])
    assert at_rate(workload, 1.0, 1.0).arrival_s.tolist() == [0.0]
    both = at_rate(Workload.of("w", [0.0, gap_s], [1, 1], [1, 2]), 0.02, 100.0).arrival_s
    assert np.isfinite(both).all()
    assert (both <= 100.0).all()


@given(workloads(), st.integers(1, 120), st.floats(0.1, 100))
def test_count_and_duration_are_as_asked(workload: Workload, count: int, duration_s: float) -> None:
    scaled = at_rate(workload, count / duration_s, duration_s)
    assert len(scaled) == count
    assert scaled.arrival_s[-1] <= duration_s * (1 + 1e-9)
    size = len(workload)
    assert scaled.output_tokens.tolist() == [1 + row % size for row in range(count)]
    passes = [scaled.rows(row, row + size) for row in range(0, count, size)]
    whole = pattern(workload)
    for part in passes:
        assert pattern(part) == whole[: len(part)]
    names = [set(part.block_ids.tolist()) for part in passes]
    talks = [set(part.session[part.session >= 0].tolist()) for part in passes]
    assert sum(map(len, names)) == len(set().union(*names))
    assert sum(map(len, talks)) == len(set().union(*talks))


@given(st.lists(workloads(), min_size=1, max_size=3))
def test_merged_parts_share_nothing_and_lose_nothing(parts: list[Workload]) -> None:
    merged = merge("all", parts)
    assert len(merged) == sum(map(len, parts))
    assert np.all(np.diff(merged.arrival_s) >= 0)
    assert np.all(np.diff(merged.block_starts) <= merged.prompt_tokens // merged.block_tokens)
    tokens = len(merged.block_ids) * merged.block_tokens
    assert tokens == sum(len(part.block_ids) * part.block_tokens for part in parts)
    shared = [len(set(part.block_ids.tolist())) * part.block_tokens for part in parts]
    assert len(set(merged.block_ids.tolist())) * merged.block_tokens == sum(shared)
    talks = sum(len({talk for talk in part.session.tolist() if talk >= 0}) for part in parts)
    assert len({talk for talk in merged.session.tolist() if talk >= 0}) == talks


def test_a_mix_has_its_shares_and_its_rate() -> None:
    short = Workload.of("short", np.arange(700) * 0.1, np.full(700, 10), np.full(700, 1))
    long = Workload.of(
        "long", np.arange(100.0), np.full(100, 1024), np.full(100, 2), blocks=[[0, row] for row in range(100)]
    )
    mixed = mix([(short, 6), (long, 1)], 14.0)
    assert mixed.name == "6xshort+1xlong"
    assert (mixed.output_tokens == 1).sum() == 6 * (mixed.output_tokens == 2).sum()
    assert len(mixed) == 700  # `long` lasts 50 s at 2 requests/s
    assert mixed.rate_rps == pytest.approx(14, rel=0.02)
    assert mixed.block_tokens == 512
    assert mix([(short, 6), (long, 1)], 14.0, duration_s=100.0).rate_rps == pytest.approx(14, rel=0.01)


def test_halves_are_the_whole() -> None:
    workload = Workload.of("w", [1, 2, 5, 8, 10], [1] * 5, [1, 2, 3, 4, 5])
    assert first_half(workload).output_tokens.tolist() == [1, 2]
    assert second_half(workload).output_tokens.tolist() == [3, 4, 5]
    assert second_half(workload).arrival_s.tolist() == [0, 3, 5]


def test_blocks_are_cut_where_they_divide() -> None:
    workload = Workload.of("w", [0, 1], [1025, 600], [1, 1], blocks=[[7, 9], [7]])
    cut = reblocked(workload, 256)
    assert cut.blocks_of(0) == [0, 1, 2, 3]
    assert cut.blocks_of(1) == [0, 1]
    with pytest.raises(ValueError, match="cannot be cut"):
        reblocked(workload, 300)


def test_requests_all_at_once_stay_so() -> None:
    assert at_rate(Workload.of("w", [3.0, 3.0], [1, 1], [1, 1]).rows(0, 2), 5.0, 0.2).arrival_s.tolist() == [
        0
    ]


@pytest.mark.parametrize(
    ("rate_rps", "duration_s"), [(0.0, 1.0), (-1.0, None), (float("nan"), 1.0), (1.0, 0.0), (0.1, 1.0)]
)
def test_no_rate_and_no_time_are_refused(rate_rps: float, duration_s: float | None) -> None:
    workload = Workload.of("w", [0, 1], [1, 1], [1, 1])
    with pytest.raises(ValueError, match=r"rate|no request"):
        at_rate(workload, rate_rps, duration_s)
    with pytest.raises(ValueError, match=r"rate|no request|weight"):
        mix([(workload, 1)], rate_rps, duration_s)
    with pytest.raises(ValueError, match="is empty"):
        at_rate(workload.rows(0, 0), 1.0)
    with pytest.raises(ValueError, match="weight"):
        mix([(workload, 0)], 1.0)
