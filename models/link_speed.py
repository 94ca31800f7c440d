"""How slow each link is just now, against what is known of its bytes and descriptors."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from kvferry.models.terms.hidden import NOISE_S
from kvferry.models.terms.way import Path, Wire

SAMPLES = 5
# Without samples a belief fades, so that the link is tried again.
HALF_LIFE_S = 15.0
FORGET_S = 10 * HALF_LIFE_S
# What was believed weighs a little more than one sample, and half of one when it comes to how far.
PRIOR_SAMPLES = 1.05
# Of samples that disagree, each counts for so much of the next one: three outweigh two and the prior.
OLDER = 0.95
SHRINK_SAMPLES = 0.5
# A move in flight for so many times what it should take tells before it ends.
OVERDUE = 3.0
# Expectations that differ by less are the same.
SAME = 0.05
LEAST, MOST = math.log(0.2), math.log(1000.0)
REFRESH_S = 0.25


class _End(NamedTuple):
    """A host as the source of moves, or as their destination."""

    host: str
    transport: str
    source: bool


class Took(NamedTuple):
    """A move that is over: what it took, give or take `noise_s`."""

    path: Path
    wire: Wire
    took_s: float
    noise_s: float
    time_s: float

    @property
    def sound(self) -> bool:
        """Whether that says anything."""
        parts = 0.0 <= self.wire.bytes_s < math.inf and 0.0 <= self.wire.posting_s < math.inf
        some = parts and self.wire.bytes_s + self.wire.posting_s > 0.0
        took = 0.0 <= self.took_s < math.inf and 0.0 < self.noise_s < math.inf
        return some and took and math.isfinite(self.time_s)


@dataclass(slots=True, eq=False)
class _Sample:
    """`log`: of what it took over what was to be expected, by what is known of the link now."""

    took: Took
    log: float
    time_s: float


class _Move(NamedTuple):
    path: Path
    due_s: float
    wire: Wire


Name = TypeVar("Name")


@dataclass(slots=True)
class LinkSpeeds:
    """Slowness of a path: seconds that moves took over those expected, contention included.

        expected = bytes_s * byte factor + posting_s * descriptor factor     (`Wire`, `known`)
        shown  = median of the last SAMPLES ln(took / expected) and the prior; newer ones weigh more
        trust  = n / (n + SHRINK_SAMPLES) * 2^(-idle / HALF_LIFE_S)
        belief = exp(prior + (shown - prior) * trust)
        prior  = shown * trust of the last SAMPLES from its source host (against a prior of 0), or of those
                 to its destination host, whichever says slower: the slower end sets the pace

    So one sample that stands alone is not believed, two that agree are (three after steady others), be they
    on one path or on several of a host; without samples a belief halves (in the log) within two HALF_LIFE_S.
    A move that is overdue counts, while it lasts, as a sample of what it has taken so far where that is more
    than was shown, and when it is given up as one of what it took until then. `took` and `expected` are
    compared after adding `noise_s` to both, so that milliseconds on a short move are no evidence. What other
    routers saw counts as if it were their own. Only moves whose expectation was by the path's base of now
    count: what was slow by the catalogue may be just right by a probe. All times in seconds, on any clock.
    """

    _samples: dict[Path, deque[_Sample]] = field(default_factory=dict)
    _by_end: dict[_End, deque[_Sample]] = field(default_factory=dict)
    _theirs: dict[str, list[_Sample]] = field(default_factory=dict)
    _moves: dict[str, _Move] = field(default_factory=dict)
    _factors: dict[tuple[Path, str], tuple[float, float]] = field(default_factory=dict)
    _bases: dict[Path, str] = field(default_factory=dict)
    _beliefs: dict[Path, float] = field(default_factory=dict)
    _priors: dict[_End, float] = field(default_factory=dict)
    _fresh_s: float = -math.inf

    def based(self, path: Path, base: str) -> None:
        """What the figures of the path's link are by (`Wire.base`): samples by another base are dropped."""
        if self._bases.get(path, "") == base:
            return
        self._bases[path] = base
        self._samples.pop(path, None)
        for end in _ends(path):
            kept = [one for one in self._by_end.get(end, ()) if one.took.path != path]
            self._by_end[end] = deque(kept, maxlen=SAMPLES)
            if not kept:
                del self._by_end[end]
        for key in [key for key in self._factors if key[0] == path]:
            del self._factors[key]
        for sample in (one for told in self._theirs.values() for one in told if one.took.path == path):
            sample.log = self._log(sample.took)
        self._fresh_s = -math.inf

    def known(self, path: Path, relation: str, byte_factor: float, descriptor_factor: float) -> None:
        """What moves of a kind cost there in the long run, over what the catalogue says."""
        now, then = (byte_factor, descriptor_factor), self._factors.get((path, relation), (1.0, 1.0))
        if all(abs(a - b) <= SAME * b for a, b in zip(now, then, strict=True)):
            return
        self._factors[path, relation] = now
        theirs = (one for told in self._theirs.values() for one in told if one.took.path == path)
        for sample in (*self._samples.get(path, ()), *theirs):
            sample.log = self._log(sample.took)

    def observe(self, path: Path, wire: Wire, took_s: float, time_s: float, noise_s: float = NOISE_S) -> None:
        """A move is over. What is not finite or negative, or should take no time, is passed over."""
        took = Took(path, wire, took_s, noise_s, time_s)
        if not (took.sound and self._applies(path, wire)):
            return
        sample = _Sample(took, self._log(took), time_s)
        self._samples.setdefault(path, deque(maxlen=SAMPLES)).append(sample)
        for end in _ends(path):
            self._by_end.setdefault(end, deque(maxlen=SAMPLES)).append(sample)

    def begin(self, move: str, path: Path, due_s: float, wire: Wire) -> None:
        """A move (any name) goes out; it should start by `due_s`."""
        if Took(path, wire, 0.0, NOISE_S, due_s).sound:
            self._moves[move] = _Move(path, due_s, wire)

    def end(self, move: str) -> None:
        """It is over; one that never began is fine."""
        self._moves.pop(move, None)

    def lost(self, move: str, time_s: float) -> float | None:
        """It was given up: if it was overdue, it would have taken at least so long (else None)."""
        late = self._moves.pop(move, None)
        if late is None or self._at_least(late, time_s) <= OVERDUE:
            return None
        self.observe(late.path, late.wire, time_s - late.due_s, time_s)
        return time_s - late.due_s

    def overdue(self, time_s: float) -> Iterator[tuple[Path, float]]:
        """Paths of moves that have been in flight for far too long, and the slowness they show at least."""
        for move in self._moves.values():
            at_least = self._at_least(move, time_s) if self._applies(move.path, move.wire) else 0.0
            if at_least > OVERDUE:
                yield move.path, at_least

    def slowness(self, paths: Sequence[Path], time_s: float) -> list[float]:
        """The factor on expected seconds for each path: 1 where nothing was seen.

        Worked out anew when REFRESH_S have passed.
        """
        if not 0.0 <= time_s - self._fresh_s < REFRESH_S:
            self._refresh(time_s)
            self._fresh_s = time_s
        if not self._beliefs:
            return [1.0] * len(paths)
        believed, priors = self._beliefs.get, self._priors.get
        return [believed(path) or math.exp(max(priors(end, 0.0) for end in _ends(path))) for path in paths]

    def told(self) -> list[Took]:
        """The moves of its own that still count."""
        return [sample.took for found in self._samples.values() for sample in found]

    def hear(self, router: str, moves: Sequence[Took]) -> None:
        """All that another router has told, in place of what it told before; none: it is forgotten."""
        heard = [_Sample(took, self._log(took), took.time_s) for took in moves if took.sound]
        self._theirs[router] = heard
        if not heard:
            del self._theirs[router]

    def _applies(self, path: Path, wire: Wire) -> bool:
        return self._bases.get(path, "") == wire.base

    def _log(self, took: Took) -> float:
        log = math.log((took.took_s + took.noise_s) / (self._expected_s(*took[:2]) + took.noise_s))
        return min(max(log, LEAST), MOST)

    def _expected_s(self, path: Path, wire: Wire) -> float:
        by_byte, by_descriptor = self._factors.get((path, wire.relation), (1.0, 1.0))
        return wire.bytes_s * by_byte + wire.posting_s * by_descriptor

    def _at_least(self, move: _Move, time_s: float) -> float:
        return (time_s - move.due_s + NOISE_S) / (self._expected_s(move.path, move.wire) + NOISE_S)

    def _refresh(self, time_s: float) -> None:
        self._samples = _recent(self._samples, time_s)
        self._by_end = _recent(self._by_end, time_s)
        samples, by_end = self._together(time_s) if self._theirs else (self._samples, self._by_end)
        late: dict[Path | _End, list[float]] = {}
        for path, at_least in self.overdue(time_s):
            for where in (path, *_ends(path)):
                late.setdefault(where, []).append(min(math.log(at_least), MOST))
        none = deque[_Sample]()
        self._priors = {
            end: _prior(by_end.get(end, none), late.get(end, ()), time_s)
            for end in dict.fromkeys((*by_end, *(end for end in late if isinstance(end, _End))))
        }
        self._beliefs = {}
        for path in dict.fromkeys((*samples, *(path for path in late if isinstance(path, Path)))):
            prior = max(self._priors.get(end, 0.0) for end in _ends(path))
            log, trust = _shown(samples.get(path, none), late.get(path, ()), prior, time_s)
            self._beliefs[path] = math.exp(prior + (log - prior) * trust)

    def _together(self, time_s: float) -> tuple[dict[Path, deque[_Sample]], dict[_End, deque[_Sample]]]:
        """The latest samples of all routers."""
        samples: dict[Path, deque[_Sample]] = {}
        by_end: dict[_End, deque[_Sample]] = {}
        own = (sample for found in self._samples.values() for sample in found)
        theirs = (
            one
            for told in self._theirs.values()
            for one in told
            if time_s - one.time_s <= FORGET_S and self._applies(*one.took[:2])
        )
        for sample in sorted((*own, *theirs), key=lambda sample: sample.time_s):
            path = sample.took.path
            samples.setdefault(path, deque(maxlen=SAMPLES)).append(sample)
            for end in _ends(path):
                by_end.setdefault(end, deque(maxlen=SAMPLES)).append(sample)
        return samples, by_end


def _recent(kept: dict[Name, deque[_Sample]], time_s: float) -> dict[Name, deque[_Sample]]:
    return {name: found for name, found in kept.items() if time_s - found[-1].time_s <= FORGET_S}


def _ends(path: Path) -> tuple[_End, _End]:
    return _End(path.src_host, path.transport, True), _End(path.dst_host, path.transport, False)


def _prior(samples: Sequence[_Sample], late: Sequence[float], time_s: float) -> float:
    """What moves at one end show, drawn towards the catalogue."""
    log, trust = _shown(samples, late, 0.0, time_s)
    return log * trust


def _shown(
    samples: Sequence[_Sample], late: Sequence[float], prior: float, time_s: float
) -> tuple[float, float]:
    """Slowness (ln) that samples in the order of their time show, and the trust in it, 0 to 1."""
    weighed, count, by_place = [(prior, PRIOR_SAMPLES)], 0.0, 1.0
    newest_s = samples[-1].time_s if samples else time_s
    for sample in reversed(samples):
        weight = by_place * _faded(newest_s - sample.time_s)
        weighed.append((sample.log, weight))
        count += weight
        by_place *= OLDER
    log = _median(weighed, count + PRIOR_SAMPLES)
    slower = [(at_least, 1.0) for at_least in late if at_least > log]
    if slower:
        newest_s = time_s
        count += len(slower)
        log = _median(weighed + slower, count + PRIOR_SAMPLES)
    return log, count / (count + SHRINK_SAMPLES) * _faded(time_s - newest_s)


def _faded(age_s: float) -> float:
    return 2.0 ** (-age_s / HALF_LIFE_S) if age_s > 0.0 else 1.0


def _median(weighed: list[tuple[float, float]], total: float) -> float:
    """The lowest value with more than half of the weight at or below it."""
    weighed.sort()
    half = 0.5 * total
    for value, weight in weighed:
        half -= weight
        if half < 0.0:
            return value
    return weighed[-1][0]
