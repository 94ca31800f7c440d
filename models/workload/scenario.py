"""Scenarios: streams of conversations whose rates change from phase to phase."""

from dataclasses import dataclass, field

import numpy as np

from kvferry.models.workload.arrivals import Arrivals
from kvferry.models.workload.base import Workload
from kvferry.models.workload.merge import merge
from kvferry.models.workload.rate_curve import RateCurve
from kvferry.models.workload.session import Session


@dataclass(frozen=True, slots=True)
class Stream:
    """`rate_rps` requests per second; conversations begin at that rate over their mean turns."""

    name: str
    session: Session
    rate_rps: float
    arrivals: Arrivals = field(default_factory=Arrivals)

    def __post_init__(self) -> None:
        if not 0 <= self.rate_rps < float("inf"):
            raise ValueError(f"stream {self.name!r}: rate_rps = {self.rate_rps}")


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the time, in proportion to `share`; streams come at `factors` times their rate."""

    share: float
    factors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Without phases every stream keeps its rate. ValueError when the parts do not fit."""

    name: str
    streams: tuple[Stream, ...]
    phases: tuple[Phase, ...] = ()
    duration_s: float = 600.0
    block_tokens: int = 512

    def __post_init__(self) -> None:
        if not self.streams or not 0 < self.duration_s < float("inf") or self.block_tokens < 1:
            raise ValueError(f"scenario {self.name!r}: no streams, no duration or no block_tokens")
        for phase in self.phases:
            if phase.share <= 0 or len(phase.factors) != len(self.streams) or min(phase.factors) < 0:
                raise ValueError(f"scenario {self.name!r}: {phase} does not fit {len(self.streams)} streams")
        if self.rate_rps <= 0:
            raise ValueError(f"scenario {self.name!r}: no stream has a rate above 0")

    @property
    def all_phases(self) -> tuple[Phase, ...]:
        return self.phases or (Phase(1.0, (1.0,) * len(self.streams)),)

    @property
    def rate_rps(self) -> float:
        """Mean over all phases."""
        whole = sum(phase.share for phase in self.all_phases)
        return sum(
            phase.share / whole * factor * stream.rate_rps
            for phase in self.all_phases
            for factor, stream in zip(phase.factors, self.streams, strict=True)
        )


def generate(
    scenario: Scenario, *, seed: int = 0, duration_s: float | None = None, rate_rps: float | None = None
) -> Workload:
    """Requests of a scenario, in [0, duration).

    Phases are stretched to another duration; with another mean rate more conversations begin, each as
    slow as before. Those that would have begun before time 0 are under way then. The number of requests
    is random: about rate times duration. ValueError for a duration or rate that is not above 0.
    """
    duration_s = scenario.duration_s if duration_s is None else duration_s
    rate_rps = scenario.rate_rps if rate_rps is None else rate_rps
    if not 0 < duration_s < float("inf") or not 0 < rate_rps < float("inf"):
        raise ValueError(f"a workload of {rate_rps} requests/s over {duration_s} s")
    shares = np.array([phase.share for phase in scenario.all_phases])
    edges_s = np.concatenate(([0.0], np.cumsum(shares) / shares.sum() * duration_s))
    parts: list[Workload] = []
    for place, stream in enumerate(scenario.streams):
        rng = np.random.default_rng((seed, place))
        turns, longest_s = stream.session.measured(rng)
        scale = rate_rps / scenario.rate_rps * stream.rate_rps / turns
        per_s = np.array([phase.factors[place] for phase in scenario.all_phases]) * scale
        begin = RateCurve(
            np.concatenate(([0.0], longest_s + edges_s)) if longest_s else edges_s,
            np.concatenate((per_s[:1], per_s)) if longest_s else per_s,
        )
        starts_s = stream.arrivals.times_s(begin, rng)
        parts.append(
            stream.session.requests(
                stream.name,
                starts_s,
                rng,
                block_tokens=scenario.block_tokens,
                since_s=longest_s,
                until_s=longest_s + duration_s,
            )
        )
    return merge(scenario.name, parts)
