"""How slow each link has shown to be, against what the catalogue says of its bytes and descriptors."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

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
# Schedulers look at a move every few milliseconds: less than that says nothing of the wire.
NOISE_S = 5e-3
LEAST, MOST = math.log(0.2), math.log(1000.0)
REFRESH_S = 0.25


class Path(NamedTuple):
    """As links are told apart."""

    src_host: str
    dst_host: str
    transport: str


class _End(NamedTuple):
    """A host as the source of moves, or as their destination."""

    host: str
    transport: str
    source: bool


class _Sample(NamedTuple):
    path: Path
    time_s: float
    log: float


class _Move(NamedTuple):
    path: Path
    due_s: float
    expected_s: float


Name = TypeVar("Name")


@dataclass(slots=True)
class LinkSpeeds:
    """Slowness of a path: seconds that moves took over those expected by the catalogue, contention included.

        shown  = median of the last SAMPLES ln(took / expected) and the prior; newer ones weigh more
        trust  = n / (n + SHRINK_SAMPLES) * 2^(-idle / HALF_LIFE_S)
        belief = exp(prior + (shown - prior) * trust)
        prior  = shown * trust of the last SAMPLES from its source host (against a prior of 0), or of those
                 to its destination host, whichever says slower: the slower end sets the pace

    So one sample that stands alone is not believed, two that agree are (three after steady others), be they
    on one path or on several of a host; without samples a belief halves (in the log) within two HALF_LIFE_S.
    A move that is overdue counts, while it lasts, as a sample of what it has taken so far where that is more
    than was shown. `took` and `expected` are compared after adding `noise_s` to both, so that milliseconds on
    a short move are no evidence. All times in seconds, on any one clock.
    """

    _samples: dict[Path, deque[_Sample]] = field(default_factory=dict)
    _by_end: dict[_End, deque[_Sample]] = field(default_factory=dict)
    _moves: dict[str, _Move] = field(default_factory=dict)
    _beliefs: dict[Path, float] = field(default_factory=dict)
    _priors: dict[_End, float] = field(default_factory=dict)
    _fresh_s: float = -math.inf

    def observe(
        self, path: Path, expected_s: float, took_s: float, time_s: float, noise_s: float = NOISE_S
    ) -> None:
        """A move is over. What is not finite or negative, or should take no time, is passed over."""
        if not (0.0 < expected_s < math.inf and 0.0 <= took_s < math.inf and 0.0 < noise_s < math.inf):
            return
        log = math.log((took_s + noise_s) / (expected_s + noise_s))
        sample = _Sample(path, time_s, min(max(log, LEAST), MOST))
        self._samples.setdefault(path, deque(maxlen=SAMPLES)).append(sample)
        for end in _ends(path):
            self._by_end.setdefault(end, deque(maxlen=SAMPLES)).append(sample)

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
        believed, priors = self._beliefs.get, self._priors.get
        return [believed(path) or math.exp(max(priors(end, 0.0) for end in _ends(path))) for path in paths]

    def _refresh(self, time_s: float) -> None:
        self._samples = _recent(self._samples, time_s)
        self._by_end = _recent(self._by_end, time_s)
        late: dict[Path | _End, list[_Sample]] = {}
        for path, at_least in self.overdue(time_s):
            sample = _Sample(path, time_s, min(math.log(at_least), MOST))
            for where in (path, *_ends(path)):
                late.setdefault(where, []).append(sample)
        none = deque[_Sample]()
        self._priors = {
            end: _prior(self._by_end.get(end, none), late.get(end, ()), time_s)
            for end in dict.fromkeys((*self._by_end, *(end for end in late if isinstance(end, _End))))
        }
        self._beliefs = {}
        for path in dict.fromkeys((*self._samples, *(path for path in late if isinstance(path, Path)))):
            prior = max(self._priors.get(end, 0.0) for end in _ends(path))
            log, trust = _shown(self._samples.get(path, none), late.get(path, ()), prior, time_s)
            self._beliefs[path] = math.exp(prior + (log - prior) * trust)


def _recent(kept: dict[Name, deque[_Sample]], time_s: float) -> dict[Name, deque[_Sample]]:
    return {name: found for name, found in kept.items() if time_s - found[-1].time_s <= FORGET_S}


def _ends(path: Path) -> tuple[_End, _End]:
    return _End(path.src_host, path.transport, True), _End(path.dst_host, path.transport, False)


def _prior(samples: Sequence[_Sample], late: Sequence[_Sample], time_s: float) -> float:
    """What moves at one end show, drawn towards the catalogue."""
    log, trust = _shown(samples, late, 0.0, time_s)
    return log * trust


def _shown(
    samples: Sequence[_Sample], late: Sequence[_Sample], prior: float, time_s: float
) -> tuple[float, float]:
    """Slowness (ln) that samples in the order of their time show, and the trust in it, 0 to 1."""
    weighed, count, by_place = [(prior, PRIOR_SAMPLES)], 0.0, 1.0
    newest_s = samples[-1].time_s if samples else time_s
    for _, at_s, log in reversed(samples):
        weight = by_place * _faded(newest_s - at_s)
        weighed.append((log, weight))
        count += weight
        by_place *= OLDER
    log = _median(weighed, count + PRIOR_SAMPLES)
    slower = [(sample.log, 1.0) for sample in late if sample.log > log]
    if slower:
        newest_s = time_s
        count += len(slower)
        log = _median(weighed + slower, count + PRIOR_SAMPLES)
    return log, count / (count + SHRINK_SAMPLES) * _faded(time_s - newest_s)


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
