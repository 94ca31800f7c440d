"""Counts how learning goes, over the requests that ended last."""

import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvferry.models.health.ring import Ring
from kvferry.models.health.seen import Pair, Seen
from kvferry.models.health.snapshot import Snapshot, TermHealth
from kvferry.policy.candidates import Floats

WINDOW = 1000
# Times are compared as if each took this long beside: what takes microseconds may be off by some.
FLOOR_S = 1e-3
MOST_REASONS = 32


@dataclass(slots=True)
class _Term:
    """The newest WINDOW pairs: how far off, and whether under the predicted 90th percentile."""

    samples: int = 0
    _offs: Floats = field(default_factory=lambda: np.zeros(WINDOW))
    _under: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(WINDOW, dtype=np.bool_))

    def add(self, pair: Pair) -> None:
        place = self.samples % WINDOW
        self._offs[place] = math.log(pair.actual_s + FLOOR_S) - math.log(pair.p50_s + FLOOR_S)
        self._under[place] = pair.actual_s <= pair.p90_s
        self.samples += 1

    def health(self) -> TermHealth:
        count = min(self.samples, WINDOW)
        offs = np.roll(self._offs, -self.samples)[WINDOW - count :]
        before, newest = offs[: count - count // 3 or None], offs[-max(1, count // 3) :]
        off = float(np.median(newest))
        drift = off - float(np.median(before)) if count >= 3 else 0.0
        return TermHealth(self.samples, count, int(self._under[:count].sum()), round(off, 4), round(drift, 4))


@dataclass(slots=True)
class LearningWindow:
    """Fed with every request: `decided` once it is, `ended` once it has. `names`: of features, in order.

    Sums are kept as requests come and leave the window: to ask for them must not hold requests up.
    """

    names: tuple[str, ...]
    _decided: int = 0
    _ended: int = 0
    _silent: int = 0
    _newest: deque[Seen] = field(default_factory=deque)
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _believed: int = 0
    _terms: dict[tuple[str, str], _Term] = field(default_factory=dict)
    _inputs: Ring = field(default_factory=lambda: Ring(WINDOW))
    _features: Ring = field(init=False)

    def __post_init__(self) -> None:
        self._features = Ring(WINDOW, {name: place for place, name in enumerate(self.names)})

    def decided(self) -> None:
        self._decided += 1
        self._silent += 1

    def ended(self, seen: Seen) -> None:
        self._ended += 1
        self._silent = 0
        self._newest.append(seen)
        self._counts.update(_counted(seen))
        self._believed += seen.believed_cached_tokens
        if len(self._newest) > WINDOW:
            gone = self._newest.popleft()
            self._counts.subtract(_counted(gone))
            self._believed -= gone.believed_cached_tokens
        self._inputs.add(seen.inputs)
        self._features.add_row(seen.features if len(seen.features) == len(self.names) else None)
        for name, pair in seen.terms.items():
            if all(math.isfinite(value) and value >= 0.0 for value in pair):
                self._terms.setdefault((name, seen.mode), _Term()).add(pair)

    def snapshot(self) -> Snapshot:
        """`router`, `time`, `policy`, `version`, `evidence` and `heard` are left to who tells it."""
        return Snapshot(
            decided=self._decided,
            ended=self._ended,
            silent=self._silent,
            window=len(self._newest),
            split=self._counts["mode", "split"],
            safe=self._counts["is", "safe"],
            learned=self._counts["is", "learned"],
            rescued=self._counts["is", "rescued"],
            failed=self._counts["is", "failed"],
            believed_cached_tokens=self._believed,
            reasons=self._most("reason"),
            fallbacks=self._most("fallback"),
            missing=self._most("missing"),
            terms={f"{name}/{mode}": term.health() for (name, mode), term in sorted(self._terms.items())},
            features=self._features.health(),
            inputs=self._inputs.health(),
        )

    def _most(self, kind: str) -> dict[str, int]:
        found = Counter({name: count for (of, name), count in self._counts.items() if of == kind and count})
        self._counts += Counter()  # drops those that have left the window
        return dict(found.most_common(MOST_REASONS))


def _counted(seen: Seen) -> Iterator[tuple[str, str]]:
    yield "mode", seen.mode
    yield "reason", seen.reason[:256]
    for name, holds in (
        ("safe", seen.safe_rule),
        ("learned", seen.learned),
        ("rescued", seen.rescued),
        ("failed", seen.failed),
    ):
        if holds:
            yield "is", name
    if seen.fallback:
        yield "fallback", seen.fallback[:256]
    for why in seen.missing:
        yield "missing", why
