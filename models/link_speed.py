"""How slow each link has shown to be, against what the catalogue says of its bytes and descriptors."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SAMPLES = 5
# Without samples a belief fades, so that the link is tried again.
HALF_LIFE_S = 20.0
FORGET_S = 10 * HALF_LIFE_S
# What was believed weighs a little more than one sample, and half of one when it comes to how far.
PRIOR_SAMPLES = 1.05
# Of samples that disagree, each counts for so much of the next one: three outweigh two and the prior.
OLDER = 0.95
SHRINK_SAMPLES = 0.5
# A move in flight for so many times what it should take tells before it ends.
OVERDUE = 3.0
# Schedulers look at a move every few milliseconds: less than that says nothing of the wire.
NOISE_S = 5e-3
LEAST, MOST = math.log(0.2), math.log(1000.0)
REFRESH_S = 0.05


class Path(NamedTuple):
    """As links are told apart."""

    src_host: str
    dst_host: str
    transport: str


class _Sample(NamedTuple):
    time_s: float
    log: float


class _Move(NamedTuple):
    path: Path
    due_s: float
    expected_s: float


class _Shown(NamedTuple):
    """`log` slowness that a path's own samples show; `trust` in it, 0 to 1."""

    log: float = 0.0
    trust: float = 0.0


@dataclass(slots=True)
class LinkSpeeds:
    """Slowness of a path: seconds that moves took over those expected by the catalogue, contention included.

        shown  = median of the last SAMPLES ln(took / expected) and the prior; newer ones weigh more
        belief = exp(prior + (shown - prior) * trust)
        trust  = n / (n + SHRINK_SAMPLES) * 2^(-idle / HALF_LIFE_S)
        prior  = sum(trust * shown) / (sum(trust) + 1) over the other paths from its source host, or over
                 those to its destination host, whichever says slower: the slower end sets the pace

    So one sample that stands alone is not believed, two that agree are (three after steady others), and a
    belief halves (in the log) for every HALF_LIFE_S without a sample. A move that is overdue counts, while
    it lasts, as a sample of what it has taken so far where that is more than was shown. `took` and
    `expected` are compared after adding `noise_s` to both, so that milliseconds on a short move are no
    evidence. All times in seconds, on any one clock.
    """

    _samples: dict[Path, deque[_Sample]] = field(default_factory=dict)
    _moves: dict[str, _Move] = field(default_factory=dict)
    _beliefs: dict[Path, float] = field(default_factory=dict)
    _sources: dict[tuple[str, str], float] = field(default_factory=dict)
    _targets: dict[tuple[str, str], float] = field(default_factory=dict)
    _fresh_s: float = -math.inf

    def observe(
        self, path: Path, expected_s: float, took_s: float, time_s: float, noise_s: float = NOISE_S
    ) -> None:
        """A move is over. What is not finite or negative, or should take no time, is passed over."""
        if not (0.0 < expected_s < math.inf and 0.0 <= took_s < math.inf and 0.0 < noise_s < math.inf):
            return
        log = math.log((took_s + noise_s) / (expected_s + noise_s))
        log = min(max(log, LEAST), MOST)
        self._samples.setdefault(path, deque(maxlen=SAMPLES)).append(_Sample(time_s, log))

    def begin(self, move: str, path: Path, due_s: float, expected_s: float) -> None:
        """A move (any name) goes out; it should start by `due_s` and then take `expected_s`."""
        if 0.0 < expected_s < math.inf and math.isfinite(due_s):
            self._moves[move] = _Move(path, due_s, expected_s)

    def end(self, move: str) -> None:
        """It is over, or was given up; one that never began is fine."""
        self._moves.pop(move, None)

    def overdue(self, time_s: float) -> Iterator[tuple[Path, float]]:
        """Paths of moves that have been in flight for far too long, and the slowness they show at least."""
        for path, due_s, expected_s in self._moves.values():
            at_least = (time_s - due_s + NOISE_S) / (expected_s + NOISE_S)
            if at_least > OVERDUE:
                yield path, at_least

    def slowness(self, paths: Sequence[Path], time_s: float) -> list[float]:
        """The factor on the catalogue's seconds for each path: 1 where nothing was seen.

        Worked out anew when REFRESH_S have passed.
        """
        if not 0.0 <= time_s - self._fresh_s < REFRESH_S:
            self._refresh(time_s)
            self._fresh_s = time_s
        if not self._beliefs:
            return [1.0] * len(paths)
        believed, prior = self._beliefs.get, self._prior
        return [believed(path) or math.exp(prior(path)) for path in paths]

    def _refresh(self, time_s: float) -> None:
        late: dict[Path, list[float]] = {}
        for path, at_least in self.overdue(time_s):
            late.setdefault(path, []).append(min(math.log(at_least), MOST))
        for path in [p for p, kept in self._samples.items() if time_s - kept[-1].time_s > FORGET_S]:
            del self._samples[path]
        paths = dict.fromkeys((*self._samples, *late))
        shown = {path: self._shown(path, late.get(path, ()), 0.0, time_s) for path in paths}
        sources: dict[tuple[str, str], list[_Shown]] = {}
        targets: dict[tuple[str, str], list[_Shown]] = {}
        for path, each in shown.items():
            sources.setdefault((path.src_host, path.transport), []).append(each)
            targets.setdefault((path.dst_host, path.transport), []).append(each)
        self._beliefs = {}
        for path, mine in shown.items():
            from_there = _pooled(sources[path.src_host, path.transport], mine)
            to_there = _pooled(targets[path.dst_host, path.transport], mine)
            prior = max(from_there, to_there)
            log, trust = self._shown(path, late.get(path, ()), prior, time_s)
            self._beliefs[path] = math.exp(prior + (log - prior) * trust)
        self._sources = {host: _pooled(each) for host, each in sources.items()}
        self._targets = {host: _pooled(each) for host, each in targets.items()}

    def _prior(self, path: Path) -> float:
        return max(
            self._sources.get((path.src_host, path.transport), 0.0),
            self._targets.get((path.dst_host, path.transport), 0.0),
        )

    def _shown(self, path: Path, late: Sequence[float], prior: float, time_s: float) -> _Shown:
        kept = self._samples.get(path) or deque[_Sample]()
        newest_s = max((sample.time_s for sample in kept), default=time_s)
        weighed = [
            (log, OLDER**older * _faded(newest_s - at_s)) for older, (at_s, log) in enumerate(reversed(kept))
        ]
        log = _median([*weighed, (prior, PRIOR_SAMPLES)])
        slower = [(at_least, 1.0) for at_least in late if at_least > log]
        if slower:
            newest_s = time_s
            log = _median([*weighed, (prior, PRIOR_SAMPLES), *slower])
        count = sum(weight for _, weight in weighed) + len(slower)
        if not count:
            return _Shown()
        return _Shown(log, count / (count + SHRINK_SAMPLES) * _faded(time_s - newest_s))


def wire_s(visible_s: float, prefill_s: float, new_tokens: float, chunk_tokens: float) -> float:
    """Seconds on the wire of a move of which `visible_s` outlasted the prefill of `new_tokens` in chunks.

    The inverse of what `kvferry.policy.predict` says of a move: chunks travel while later ones are computed,
    and the first, the last or the one before it is waited for.
    """
    new_tokens, chunk_tokens = max(1.0, new_tokens), max(1.0, chunk_tokens)
    chunk = min(chunk_tokens / new_tokens, 1.0)
    last = 1.0 - (math.ceil(new_tokens / chunk_tokens) - 1.0) * chunk
    late = min(chunk + last, 1.0)
    return min(visible_s + prefill_s * (1.0 - chunk), visible_s / last, (visible_s + prefill_s * last) / late)


def nearest_s(
    expected_s: float,
    visible_s: float,
    prefill_s: float,
    new_tokens: float,
    chunk_tokens: float,
    noise_s: float = NOISE_S,
) -> float:
    """Of the seconds on the wire that `visible_s`, give or take `noise_s`, allows, those nearest to
    `expected_s`: a move that its prefill hides says only that it was not slower than that."""
    low_s = wire_s(max(0.0, visible_s - noise_s), prefill_s, new_tokens, chunk_tokens)
    high_s = wire_s(max(0.0, visible_s) + noise_s, prefill_s, new_tokens, chunk_tokens)
    return min(max(expected_s, low_s), high_s)


def _pooled(shown: Iterable[_Shown], but: _Shown | None = None) -> float:
    """What others show, drawn towards the catalogue."""
    total, trusted = 0.0, 1.0
    for each in shown:
        if each is not but:
            total += each.trust * each.log
            trusted += each.trust
    return total / trusted


def _faded(age_s: float) -> float:
    return float(2.0 ** (-max(0.0, age_s) / HALF_LIFE_S))


def _median(weighed: list[tuple[float, float]]) -> float:
    """The lowest value with more than half of the weight at or below it."""
    weighed.sort()
    half = 0.5 * sum(weight for _, weight in weighed)
    for value, weight in weighed:
        half -= weight
        if half < 0.0:
            return value
    return weighed[-1][0]
