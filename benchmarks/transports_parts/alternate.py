"""Two ways to make the same move, in turns."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from transports_parts.pair import Pair

WARM = 2


@dataclass(frozen=True, slots=True)
class Compared:
    """Seconds of moves, ours and the bare library's; `least` and `median` are ours over theirs."""

    way: str
    what: str
    ours_s: tuple[float, ...]
    theirs_s: tuple[float, ...]

    @property
    def least(self) -> float:
        return min(self.ours_s) / min(self.theirs_s)

    @property
    def median(self) -> float:
        return float(np.median(self.ours_s) / np.median(self.theirs_s))


def alternate(
    pair: Pair,
    what: str,
    ours: Callable[[], float],
    theirs: Callable[[], None],
    pairs: int,
    advance: Callable[[], None],
) -> Compared:
    """Which of the two goes first changes with each pair; `ours` keeps its own time."""
    took: dict[str, list[float]] = {"ours": [], "theirs": []}
    for index in range(WARM + pairs):
        for who in ("ours", "theirs") if index % 2 else ("theirs", "ours"):
            if who == "ours":
                took[who].append(ours())
                continue
            with pair.raw_moves():
                began_s = time.perf_counter()
                theirs()
                took[who].append(time.perf_counter() - began_s)
        advance()
    return Compared(pair.way, what, tuple(took["ours"][WARM:]), tuple(took["theirs"][WARM:]))
