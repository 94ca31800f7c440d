"""What this router has in flight on each worker: exact at dispatch, before any counter can show it."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, takewhile

# A sequence promised to a decode worker counts half until its first token: counting promises as
# residents halved goodput in the scoring study.
PROMISED = 0.5
HISTORY_S = 10.0
ARRIVALS_WINDOW_S = 10.0


@dataclass(slots=True)
class Entry:
    """One request on its way: new prompt tokens on `pre`, which take it `prefill_s` as predicted, sequences
    and KV tokens on `dec`."""

    pre: str
    dec: str
    path: str
    prefill_tokens: float
    sequences: float
    context_tokens: float
    start_s: float
    prefill_s: float = 0.0
    first_token_s: float = math.inf
    end_s: float = math.inf


@dataclass(slots=True)
class Totals:
    prefill_tokens: float = 0.0
    decodes: float = 0.0
    context_tokens: float = 0.0
    prefill_s: float = 0.0


@dataclass(slots=True)
class _Arrivals:
    rate: float = 0.0
    share: float = 0.0
    time_s: float = 0.0


@dataclass(slots=True)
class Book:
    """Entries in flight, and those that ended within HISTORY_S: a worker's counters are compared with
    what the book held when they were taken, so that only the rest is somebody else's work."""

    clock: Callable[[], float]
    now: dict[str, Totals] = field(default_factory=dict)
    moves: dict[str, int] = field(default_factory=dict)
    _open: dict[str, Entry] = field(default_factory=dict)
    _ended: deque[Entry] = field(default_factory=deque)
    _arrivals: dict[str, _Arrivals] = field(default_factory=dict)
    _queues: dict[str, dict[str, Entry]] = field(default_factory=dict)
    _freed_s: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def start(self, key: str, entry: Entry) -> None:
        self._open[key] = entry
        self._queues.setdefault(entry.pre, {})[key] = entry
        _add(self.now, entry, prefilled=False)
        if entry.path:
            self.moves[entry.path] = self.moves.get(entry.path, 0) + 1
        arrivals = self._arrivals.setdefault(entry.pre, _Arrivals(time_s=entry.start_s))
        kept = _kept(arrivals, entry.start_s)
        arrivals.rate = arrivals.rate * kept + 1.0 / ARRIVALS_WINDOW_S
        arrivals.share = arrivals.share * kept + entry.prefill_s / ARRIVALS_WINDOW_S
        arrivals.time_s = entry.start_s

    def first_token(self, key: str) -> None:
        """The prompt is computed and its KV is where it is needed."""
        entry = self._open.get(key)
        if entry is None or entry.first_token_s != math.inf:
            return
        _add(self.now, entry, prefilled=False, sign=-1.0)
        entry.first_token_s = self.clock()
        del self._queues[entry.pre][key]
        self._freed_s[entry.pre] = entry.first_token_s
        _add(self.now, entry, prefilled=True)
        if entry.path:
            self.moves[entry.path] -= 1

    def end(self, key: str) -> None:
        self.first_token(key)
        entry = self._open.pop(key, None)
        if entry is None:
            return
        _add(self.now, entry, prefilled=True, sign=-1.0)
        entry.end_s = self.clock()
        self._ended.append(entry)
        while self._ended and self._ended[0].end_s < entry.end_s - HISTORY_S:
            self._ended.popleft()

    def backlog_s(self, worker: str) -> float:
        """Predicted seconds of prefill in flight on a worker, less what it must have done of the oldest
        since that came or the one before it was done."""
        queue = self._queues.get(worker)
        if not queue:
            return 0.0
        oldest = next(iter(queue.values()))
        since_s = max(oldest.start_s, self._freed_s.get(worker, -math.inf))
        done_s = min(self.clock() - since_s, oldest.prefill_s)
        return max(0.0, self.now[worker].prefill_s - done_s)

    def at(self, time_s: float, worker: str) -> Totals:
        """What was in flight on a worker at a moment within the last HISTORY_S."""
        totals: dict[str, Totals] = {}
        for entry in chain(self._open.values(), self._since(time_s)):
            if worker in (entry.pre, entry.dec) and entry.start_s <= time_s:
                _add(totals, entry, prefilled=entry.first_token_s <= time_s)
        return totals.get(worker, Totals())

    def _since(self, time_s: float) -> Iterator[Entry]:
        """Entries that ended after a moment: the last ones, for they are kept in the order of their end."""
        return takewhile(lambda entry: entry.end_s > time_s, reversed(self._ended))

    def arrivals_per_s(self, worker: str) -> float:
        """Recent dispatches to a worker, exponentially averaged over ARRIVALS_WINDOW_S."""
        arrivals = self._arrivals.get(worker)
        return arrivals.rate * _kept(arrivals, self.clock()) if arrivals else 0.0

    def prefill_share(self, worker: str) -> float:
        """Part of a worker's time that recent dispatches take it to prefill, averaged likewise: known at
        dispatch, seconds before its counters show it."""
        arrivals = self._arrivals.get(worker)
        return arrivals.share * _kept(arrivals, self.clock()) if arrivals else 0.0


def _add(totals: dict[str, Totals], entry: Entry, *, prefilled: bool, sign: float = 1.0) -> None:
    pre, dec = totals.setdefault(entry.pre, Totals()), totals.setdefault(entry.dec, Totals())
    weight = sign if prefilled else sign * PROMISED
    if not prefilled:
        pre.prefill_tokens += sign * entry.prefill_tokens
        pre.prefill_s += sign * entry.prefill_s
    dec.decodes += weight * entry.sequences
    dec.context_tokens += weight * entry.context_tokens


def _kept(arrivals: _Arrivals, now_s: float) -> float:
    return math.exp(-max(0.0, now_s - arrivals.time_s) / ARRIVALS_WINDOW_S)
