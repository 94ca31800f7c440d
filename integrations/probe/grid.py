"""Which moves tell a path, in which order, and which of them a budget of time allows. Pure."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvferry.models.paths.sample import Sample

__all__ = ["Cell", "Pace", "chunks", "counts", "repeats", "sizes", "worth"]

SMALLEST_BYTES, STEP = 4096, 4
LARGEST_BYTES = 2**28
COUNTS = (1, 16, 128, 1024)
LEAST_BLOCK_BYTES = 256
# Sizes and counts that no budget leaves out: two regimes cannot be told by less.
LEAST_SIZES = 5
# The first pass over all sizes may take this share of the budget, later ones all but what crowds need.
FIRST_SHARE, CROWD_SHARE = 0.5, 0.15
# A cell of small moves is noisy and costs little: repeated until that much time went into it, or so often.
WORTH_S, MOST_TIMES = 0.25, 5


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """Moves of one kind."""

    moved_bytes: int
    descriptors: int


def sizes(largest_bytes: int = LARGEST_BYTES) -> tuple[int, ...]:
    """4 KiB, 16 KiB, ... up to `largest_bytes`."""
    found = [SMALLEST_BYTES]
    while found[-1] * STEP <= largest_bytes:
        found.append(found[-1] * STEP)
    return tuple(found)


def counts(moved_bytes: int) -> tuple[int, ...]:
    """Numbers of blocks, none smaller than 256 bytes."""
    return tuple(count for count in COUNTS if moved_bytes // count >= LEAST_BLOCK_BYTES)


@dataclass(slots=True)
class Pace:
    """How long moves take, from those that were seen."""

    _seen: dict[Cell, list[float]] = field(default_factory=dict)

    def saw(self, sample: Sample) -> None:
        if sample.concurrency == 1:
            self._seen.setdefault(Cell(sample.moved_bytes, sample.descriptors), []).append(sample.total_s)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Those that were seen, small moves first."""
        return tuple(sorted(self._seen))

    def expect_s(self, cell: Cell) -> float:
        """The median of its like, or that of the most similar smaller move, in proportion to the bytes, which
        is no less than it will take while the rate stays; 0 where nothing was seen."""
        if (took := self._seen.get(cell)) is not None:
            return float(np.median(took))
        smaller = [each for each in self._seen if each.moved_bytes <= cell.moved_bytes]
        if not smaller:
            return 0.0
        like = max(smaller, key=lambda each: (each.moved_bytes, -abs(each.descriptors - cell.descriptors)))
        return self.expect_s(like) * cell.moved_bytes / like.moved_bytes


def worth(pace: Pace, moved_bytes: int, spent_s: float, budget_s: float) -> tuple[Cell, ...]:
    """Cells of a size for the first pass: all, the two outermost, or none for want of time."""
    every = [Cell(moved_bytes, count) for count in counts(moved_bytes)]
    for cells in (every, [every[0], every[-1]]):
        if spent_s + sum(map(pace.expect_s, cells)) <= FIRST_SHARE * budget_s:
            return tuple(cells)
    return tuple(cells) if len({cell.moved_bytes for cell in pace.cells}) < LEAST_SIZES else ()


def repeats(pace: Pace, times: int, left_s: float) -> list[Cell]:
    """What to move again so that every cell was moved `times` times, small moves more often.

    Cheap ones first to be chosen, then in rounds, shuffled within each: what changes on the way hits all
    sizes. Their time adds up to at most `left_s`.
    """
    rounds = []
    for cell in pace.cells:
        took_s = pace.expect_s(cell)
        wanted = min(max(times, int(WORTH_S / took_s)), MOST_TIMES * times)
        rounds += [(took_s, which, cell) for which in range(1, wanted)]
    chosen, spent_s = [], 0.0
    for took_s, which, cell in sorted(rounds):
        if (spent_s := spent_s + took_s) > left_s:
            break
        chosen.append((which, cell))
    order = random.Random(0)
    return [cell for _, _, cell in sorted((which, order.random(), cell) for which, cell in chosen)]


def crowded(pace: Pace, concurrency: Sequence[int], rounds: int, left_s: float) -> Cell | None:
    """The largest move of 16 blocks that can be made so many at once, `rounds` times each, in `left_s`."""
    moves = rounds * sum(concurrency)
    able = [c for c in pace.cells if c.descriptors == COUNTS[1] and moves * pace.expect_s(c) <= left_s]
    return able[-1] if able else None


def chunks(cells: Iterable[Cell], pace: Pace, limit_s: float, most: int = 256) -> Iterator[list[Cell]]:
    """The cells in their order, in lists that take about `limit_s` each."""
    chunk: list[Cell] = []
    sum_s = 0.0
    for cell in cells:
        took_s = pace.expect_s(cell)
        if chunk and (sum_s + took_s > limit_s or len(chunk) == most):
            yield chunk
            chunk, sum_s = [], 0.0
        chunk.append(cell)
        sum_s += took_s
    if chunk:
        yield chunk
