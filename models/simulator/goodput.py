"""Goodput: the highest request rate at which the objectives are still met, found by scanning upwards."""

import math
from collections.abc import Callable
from dataclasses import dataclass

ATTAINMENT = 0.9
FAIR_ATTAINMENT = 0.8


@dataclass(frozen=True, slots=True)
class ScanRule:
    """Rates are start_rps * step^k. `leap` grid places are taken at once up to the first failure, which is
    then approached again in smaller leaps and at last place by place; the scan ends after `patience`
    failures in a row or at `stop_rps`.

    `min_requests`: a run at a low rate lasts as long as it takes to see so many.
    """

    start_rps: float = 0.125
    step: float = 1.08
    leap: int = 9
    patience: int = 3
    stop_rps: float = 4096.0
    min_requests: int = 300

    def __post_init__(self) -> None:
        if not 0 < self.start_rps <= self.stop_rps:
            raise ValueError(f"a scan from {self.start_rps:g} to {self.stop_rps:g} requests/s has no rates")
        if not 1.001 <= self.step <= 10:
            raise ValueError(f"step {self.step:g} is not between 1.001 and 10")
        if min(self.leap, self.patience, self.min_requests) < 1:
            raise ValueError("leap, patience and min_requests must be at least 1")

    def rate_rps(self, place: int) -> float:
        return self.start_rps * self.step**place

    @property
    def places(self) -> int:
        """How many rates there are."""
        return 1 + math.floor(math.log(self.stop_rps / self.start_rps) / math.log(self.step) + 1e-9)


SCAN = ScanRule()


@dataclass(frozen=True, slots=True)
class Point:
    """What was seen at one rate; both shares are None for a run given up as certainly failed."""

    rate_rps: float
    attainment: float | None
    fair_attainment: float | None

    @property
    def passes(self) -> bool:
        return self.attainment is not None and self.attainment >= ATTAINMENT

    @property
    def passes_fairly(self) -> bool:
        fair = self.fair_attainment
        return self.passes and fair is not None and fair >= FAIR_ATTAINMENT


@dataclass(frozen=True, slots=True)
class Goodput:
    """The highest rates of the grid that passed (0: none), and all points by rate. Not interpolated: the
    true figure lies up to one step above."""

    goodput_rps: float
    fair_goodput_rps: float
    points: tuple[Point, ...]


def scan(measure: Callable[[float], Point], rule: ScanRule = SCAN) -> Goodput:
    """Scan upwards. Attainment need not fall with the rate (a pool can be stuck in a bad state at one rate
    and not at the next), so bisection would lie, and a failure below a pass does not count."""
    seen: dict[int, Point] = {}

    def at(place: int) -> Point:
        if place not in seen:
            seen[place] = measure(rule.rate_rps(place))
        return seen[place]

    climb(lambda place: at(place).passes, rule)
    climb(lambda place: at(place).passes_fairly, rule)
    points = tuple(seen[place] for place in sorted(seen))
    return Goodput(
        goodput_rps=max((point.rate_rps for point in points if point.passes), default=0.0),
        fair_goodput_rps=max((point.rate_rps for point in points if point.passes_fairly), default=0.0),
        points=points,
    )


def climb(passes: Callable[[int], bool], rule: ScanRule) -> None:
    """In leaps to the first failure, from the last pass in smaller ones, and from there place by place."""
    passed = -1
    for stride in (rule.leap, max(1, round(math.sqrt(rule.leap)))):
        place = passed + stride if passed >= 0 else 0
        while place < rule.places and passes(place):
            passed, place = place, place + stride
    place, failures = passed + 1, 0
    while place < rule.places and failures < rule.patience:
        failures = 0 if passes(place) else failures + 1
        place += 1
