"""Paths that failed and are left alone for a while."""

from collections.abc import Callable
from dataclasses import dataclass, field

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
# How long one request keeps the others off while it tries a path; one that is given up decides nothing.
TRIAL_S = 30.0


@dataclass(slots=True)
class _Trip:
    failures: int
    until_s: float
    reason: str
    trial: bool = False


@dataclass(slots=True)
class Breakers:
    """One breaker per split plan (pair and transport). A failure opens it for 2 s, each further one for
    twice as long up to 60 s. When the pause is over one request tries the path while the others still avoid
    it: a success closes the breaker, a failure opens it for longer."""

    clock: Callable[[], float]
    _trips: dict[str, _Trip] = field(default_factory=dict)

    def failed(self, key: str, reason: str) -> None:
        trip = self._trips.get(key)
        if trip is not None and trip.until_s > self.clock() and not trip.trial:
            return  # one of many requests that were on the path when it failed
        failures = trip.failures + 1 if trip is not None else 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (failures - 1))
        self._trips[key] = _Trip(failures, self.clock() + pause_s, reason)

    def tried(self, key: str) -> None:
        """A request was sent that way: the only one for now, if the path has failed before."""
        trip = self._trips.get(key)
        if trip is not None and trip.until_s <= self.clock():
            trip.trial, trip.until_s = True, self.clock() + TRIAL_S

    def succeeded(self, key: str) -> bool:
        """Whether this closed a breaker that had tripped."""
        return self._trips.pop(key, None) is not None

    def forget(self, worker: str) -> None:
        """The worker restarted: what was seen of the old one says nothing about the new one."""
        for key in [key for key in self._trips if uses(key, worker)]:
            del self._trips[key]

    def open(self) -> dict[str, str]:
        """Plan keys to avoid now, with the reason of each."""
        now_s = self.clock()
        return {
            key: trip.reason + (" (one request is trying it)" if trip.trial else "")
            for key, trip in self._trips.items()
            if trip.until_s > now_s
        }


def uses(plan_key: str, worker: str) -> bool:
    """Whether a split plan's key names this worker; one id may be the beginning of another."""
    return f":{worker}>" in plan_key or f">{worker}@" in plan_key
