"""How a router's learning is, in numbers: what it tells, and what is judged."""

import math
from typing import Annotated, Literal, TypeVar

import msgspec

SCHEMA: Literal["kvferry.learning.v1"] = "kvferry.learning.v1"
MOST_BYTES = 64 * 1024

_T = TypeVar("_T", "TermHealth", "InputHealth")
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Counts = Annotated[dict[_Name, _Count], msgspec.Meta(max_length=256)]


class TermHealth(msgspec.Struct, frozen=True):
    """Of one term in one mode. `samples`: measured since the start; the rest is of the window: measured,
    and of those under the predicted 90th percentile. `off` is the median of

        ln((actual + FLOOR_S) / (predicted median + FLOOR_S))

    over the newest third, and `drift` by how much it differs from that of the other two thirds.
    """

    samples: _Count = 0
    window: _Count = 0
    covered: _Count = 0
    off: float = 0.0
    drift: float = 0.0

    @property
    def coverage(self) -> float | None:
        """Share under the predicted 90th percentile: right is 0.9."""
        return self.covered / self.window if self.window else None

    def plus(self, other: "TermHealth") -> "TermHealth":
        """Of two routers: medians weighed by how much each has measured."""
        window = self.window + other.window
        mine = self.window / window if window else 0.0
        return TermHealth(
            self.samples + other.samples,
            window,
            self.covered + other.covered,
            mine * self.off + (1.0 - mine) * other.off,
            mine * self.drift + (1.0 - mine) * other.drift,
        )


class InputHealth(msgspec.Struct, frozen=True):
    """Of the window: how many requests should have had it, how many did, its range and sum over those."""

    asked: _Count = 0
    arrived: _Count = 0
    low: float = 0.0
    high: float = 0.0
    total: float = 0.0

    @property
    def constant(self) -> bool:
        return self.arrived > 0 and self.low == self.high

    def plus(self, other: "InputHealth") -> "InputHealth":
        if not self.arrived or not other.arrived:
            told = self if self.arrived else other
            return msgspec.structs.replace(told, asked=self.asked + other.asked)
        return InputHealth(
            self.asked + other.asked,
            self.arrived + other.arrived,
            min(self.low, other.low),
            max(self.high, other.high),
            self.total + other.total,
        )


class Snapshot(msgspec.Struct, frozen=True):
    """One router's, or several routers' sum. `decided`, `ended`: since the start; `silent`:
    decided since an outcome came last; all else is of the window.

    `terms`: "ttft/split" -> ...; `features`: what models are shown; `inputs`: what outcomes tell. `learned`:
    requests whose predictions a learned version was to correct. `version`: the one that decides most.
    `evidence`: samples behind the online models since the start; `heard`: other routers whose evidence is
    added to its own.
    """

    schema: Literal["kvferry.learning.v1"] = SCHEMA
    router: _Name = ""
    time: float = 0.0
    policy: _Name = ""
    version: _Name = ""
    decided: _Count = 0
    ended: _Count = 0
    silent: _Count = 0
    window: _Count = 0
    split: _Count = 0
    safe: _Count = 0
    learned: _Count = 0
    rescued: _Count = 0
    failed: _Count = 0
    heard: _Count = 0
    believed_cached_tokens: _Count = 0
    reasons: _Counts = {}
    fallbacks: _Counts = {}
    missing: _Counts = {}
    evidence: _Counts = {}
    terms: Annotated[dict[_Name, TermHealth], msgspec.Meta(max_length=64)] = {}
    features: Annotated[dict[_Name, InputHealth], msgspec.Meta(max_length=256)] = {}
    inputs: Annotated[dict[_Name, InputHealth], msgspec.Meta(max_length=64)] = {}

    def share(self, count: int) -> float:
        """Of the requests in the window."""
        return count / self.window if self.window else 0.0

    def plus(self, other: "Snapshot") -> "Snapshot":
        """Both routers as one; what they do not have in common is that of the one that has seen more."""
        most = self if self.window >= other.window else other
        counts = ("decided", "ended", "window", "split", "safe", "learned", "rescued", "failed")
        tables = ("reasons", "fallbacks", "missing", "evidence")
        return msgspec.structs.replace(
            most,
            router="",
            time=max(self.time, other.time),
            heard=max(self.heard, other.heard),
            silent=max(self.silent, other.silent),
            believed_cached_tokens=self.believed_cached_tokens + other.believed_cached_tokens,
            terms=_both(self.terms, other.terms),
            features=_both(self.features, other.features),
            inputs=_both(self.inputs, other.inputs),
            **{name: getattr(self, name) + getattr(other, name) for name in counts},
            **{name: _sums(getattr(self, name), getattr(other, name)) for name in tables},
        )


_decoder = msgspec.json.Decoder(Snapshot)


def read_snapshot(told: bytes) -> Snapshot:
    """ValueError, in one line, when it is none; it may come from anybody who can write to the store."""
    if len(told) > MOST_BYTES:
        raise ValueError(f"{len(told)} bytes, more than {MOST_BYTES}")
    found = _decoder.decode(told)
    numbers = [found.time]
    numbers += [value for one in found.terms.values() for value in (one.off, one.drift)]
    for table in (found.features, found.inputs):
        numbers += [value for one in table.values() for value in (one.low, one.high, one.total)]
    if not all(math.isfinite(value) for value in numbers):
        raise ValueError("a number is not finite")
    return found


def _both(mine: dict[str, _T], theirs: dict[str, _T]) -> dict[str, _T]:
    return mine | {name: mine[name].plus(one) if name in mine else one for name, one in theirs.items()}


def _sums(mine: dict[str, int], theirs: dict[str, int]) -> dict[str, int]:
    return {name: mine.get(name, 0) + theirs.get(name, 0) for name in mine | theirs}
