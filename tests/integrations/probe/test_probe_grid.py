"""Which moves a path is measured by: laws of the grid, and whole runs on a path that only a clock knows."""

from collections import Counter
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.probe import grid
from kvferry.integrations.probe.client import AgentError
from kvferry.integrations.probe.grid import Cell, Pace
from kvferry.integrations.probe.messages import Opened
from kvferry.integrations.probe.path import Path, Scope
from kvferry.models.paths.fit import fit
from kvferry.models.paths.sample import Sample

MIB = 2**20
GBIT_BYTES_PER_S = 1e9 / 8
OPENED = Opened("s", b"", 0.0, 0.0)


class Wire:
    """An agent whose moves take what the rate says, on a clock of their own."""

    def __init__(self, bytes_per_s, alpha_s=1e-4, gamma_s=1e-6, dies_after=None):
        self.bytes_per_s, self.alpha_s, self.gamma_s, self.dies_after = (
            bytes_per_s,
            alpha_s,
            gamma_s,
            dies_after,
        )
        self.now_s = 0.0
        self.moved = 0

    @asynccontextmanager
    async def awake(self, session):
        yield

    async def connect(self, session, asked):
        return 0.25

    async def moves(self, session, peer, wanted, deadline_s):
        for each in wanted:
            took_s = self.alpha_s + each.moved_bytes / self.rate() + self.gamma_s * each.descriptors
            for _ in range(each.concurrency):
                if self.moved == self.dies_after:
                    raise AgentError("a:1: gone")
                self.now_s += took_s * (3 if each.concurrency > 1 else 1)
                self.moved += 1
                yield Sample(each.moved_bytes, each.descriptors, took_s * each.concurrency, each.concurrency)

    def rate(self):
        return self.bytes_per_s


class Dropping(Wire):
    """A tenth of the rate from `at_s` on."""

    at_s = 0.0

    def rate(self):
        return self.bytes_per_s / (10 if self.now_s > self.at_s else 1)


async def measured(wire, **scope):
    path = Path(wire, wire, OPENED, OPENED, Scope(**scope), lambda: None, clock=lambda: wire.now_s)
    await path.measure()
    return path


def alone(path):
    return [sample for sample in path.samples if sample.concurrency == 1]


def test_sizes_are_four_times_each_other_and_blocks_are_no_smaller_than_256_bytes():
    found = grid.sizes()
    assert (found[0], found[-1], len(found)) == (4096, 256 * MIB, 9)
    assert all(large == 4 * small for small, large in pairwise(found))
    assert grid.sizes(100 * MIB)[-1] == 64 * MIB
    assert grid.counts(4096) == (1, 16)
    assert grid.counts(256 * MIB) == (1, 16, 128, 1024)
    assert all(size % count == 0 and size // count >= 256 for size in found for count in grid.counts(size))


@given(rate=st.floats(1e5, 1e12), budget_s=st.floats(5.0, 120.0))
async def test_a_run_keeps_to_its_budget_on_any_path(rate, budget_s):
    wire = Wire(rate)
    path = await measured(wire, budget_s=budget_s)
    # What no budget leaves out: five sizes of one and of most blocks; the first pass may spend half.
    least_s = sum(2 * (1e-4 + size / rate + 1e-3) for size in grid.sizes(MIB))
    assert path.spent_s <= max(budget_s, 0.5 * budget_s + least_s) + 1e-6
    sizes = {sample.moved_bytes for sample in path.samples}
    assert sizes >= set(grid.sizes(MIB))
    assert all(sample.concurrency in (1, 2, 4) for sample in path.samples)
    assert path.first_contact_s == 0.25


@pytest.mark.parametrize(
    ("gbit", "largest", "limit_s"), [(100.0, 256 * MIB, 20.0), (1.0, 256 * MIB, 60.0), (0.1, 64 * MIB, 60.0)]
)
async def test_the_rate_is_found_whether_or_not_there_is_time_for_all(gbit, largest, limit_s):
    path = await measured(Wire(gbit * GBIT_BYTES_PER_S))
    assert path.spent_s <= limit_s
    assert max(sample.moved_bytes for sample in path.samples) == largest
    counted = Counter(Cell(sample.moved_bytes, sample.descriptors) for sample in alone(path))
    assert all(times >= 3 for cell, times in counted.items() if cell.moved_bytes <= 16 * MIB)
    fitted = fit(path.samples)
    assert fitted.curve.beta_bytes_per_s == pytest.approx(gbit * GBIT_BYTES_PER_S, rel=0.01)
    assert fitted.contention == pytest.approx(1.0, rel=0.1)


async def test_a_path_that_gets_ten_times_slower_midway_overruns_by_little():
    wire = Dropping(GBIT_BYTES_PER_S)
    wire.at_s = 20.0  # amid the repeats
    path = await measured(wire)
    assert 20.0 < path.spent_s < 75.0
    assert len({sample.moved_bytes for sample in path.samples}) == 9


async def test_what_was_measured_before_a_failure_stays():
    wire = Wire(GBIT_BYTES_PER_S, dies_after=17)
    path = Path(wire, wire, OPENED, OPENED, Scope(), lambda: None, clock=lambda: wire.now_s)
    with pytest.raises(AgentError, match="gone"):
        await path.measure()
    assert len(path.samples) == 17


def test_repeats_mix_large_and_small_all_the_way():
    pace = Pace()
    for size in grid.sizes():
        for count in grid.counts(size):
            pace.saw(Sample(size, count, 1e-4 + size / 1e8))
    again = grid.repeats(pace, 3, 1000.0)
    large = [at for at, cell in enumerate(again) if cell.moved_bytes >= 16 * MIB]
    small = [at for at, cell in enumerate(again) if cell.moved_bytes <= 64 * 1024]
    assert min(small) < min(large) + 20
    assert min(large) < 20
    assert len(large) == 2 * 3 * 4
    assert sum(low < high for low in small for high in large) > 0.05 * len(small) * len(large)
    assert sum(low > high for low in small for high in large) > 0.05 * len(small) * len(large)


@given(left_s=st.floats(0.0, 50.0))
def test_repeats_fit_into_the_time_that_is_left(left_s):
    pace = Pace()
    for size in grid.sizes():
        pace.saw(Sample(size, 1, 1e-4 + size / 1e8))
    assert sum(map(pace.expect_s, grid.repeats(pace, 3, left_s))) <= left_s


def test_a_larger_move_is_expected_in_proportion_and_a_known_one_as_it_was():
    pace = Pace()
    assert pace.expect_s(Cell(4096, 1)) == 0.0
    for total_s in (0.1, 9.0, 0.2):
        pace.saw(Sample(4096, 1, total_s))
    pace.saw(Sample(4096, 1, 50.0, concurrency=2))
    assert pace.expect_s(Cell(4096, 1)) == 0.2
    assert pace.expect_s(Cell(16384, 16)) == pytest.approx(0.8)


def test_chunks_are_the_cells_in_order_and_none_is_empty():
    pace = Pace()
    cells = [Cell(4096, 1), Cell(16384, 1), Cell(4096, 1), Cell(65536, 1)]
    for cell in cells:
        pace.saw(Sample(cell.moved_bytes, 1, cell.moved_bytes / 4096))
    found = list(grid.chunks(cells, pace, 5.0))
    assert found == [cells[:2], cells[2:3], cells[3:]]
