"""Counts how learning goes, over the requests that ended last."""

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvferry.models.health.seen import Pair, Seen
from kvferry.models.health.snapshot import InputHealth, Snapshot, TermHealth

WINDOW = 1000
# Times are compared as if each took this long beside: what takes microseconds may be off by some.
FLOOR_S = 1e-3
MOST_REASONS = 32


@dataclass(slots=True)
class _Term:
    samples: int = 0
    offs: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    under: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, pair: Pair) -> None:
        off = math.log((pair.actual_s + FLOOR_S) / (pair.p50_s + FLOOR_S))
        self.samples += 1
        self.offs.append(off)
        self.under.append(pair.actual_s <= pair.p90_s)

    def health(self) -> TermHealth:
        count = len(self.offs)
        offs = np.array(self.offs)
        before, newest = offs[: count - count // 3 or None], offs[-max(1, count // 3) :]
        off = float(np.median(newest))
        drift = off - float(np.median(before)) if count >= 3 else 0.0
        return TermHealth(self.samples, count, sum(self.under), round(off, 4), round(drift, 4))


@dataclass(slots=True)
class LearningWindow:
    """Fed with every request: `decided` once it is, `ended` once it has. Cheap: sums are made when asked.

    `names`: of features, in order.
    """

    names: tuple[str, ...]
    _decided: int = 0
    _ended: int = 0
    _newest: deque[Seen] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _terms: dict[tuple[str, str], _Term] = field(default_factory=dict)

    def decided(self) -> None:
        self._decided += 1

    def ended(self, seen: Seen) -> None:
        self._ended += 1
        self._newest.append(seen)
        for name, pair in seen.terms.items():
            if all(math.isfinite(value) and value >= 0.0 for value in pair):
                self._terms.setdefault((name, seen.mode), _Term()).add(pair)

    def snapshot(self) -> Snapshot:
        """`router`, `time`, `policy`, `version`, `evidence` and `heard` are left to who tells it."""
        seen = list(self._newest)

        def count(holds: Callable[[Seen], object]) -> int:
            return sum(1 for one in seen if holds(one))

        return Snapshot(
            decided=self._decided,
            ended=self._ended,
            window=len(seen),
            split=count(lambda one: one.mode == "split"),
            safe=count(lambda one: one.safe_rule),
            learned=count(lambda one: one.learned),
            rescued=count(lambda one: one.rescued),
            failed=count(lambda one: one.failed),
            believed_cached_tokens=sum(one.believed_cached_tokens for one in seen),
            reasons=_most(Counter(one.reason for one in seen)),
            fallbacks=_most(Counter(one.fallback for one in seen if one.fallback)),
            missing=_most(Counter(why for one in seen for why in one.missing)),
            terms={f"{name}/{mode}": term.health() for (name, mode), term in sorted(self._terms.items())},
            features=self._features(seen),
            inputs=_inputs(seen),
        )

    def _features(self, seen: list[Seen]) -> dict[str, InputHealth]:
        shown = [one.features for one in seen if len(one.features) == len(self.names)]
        if not shown:
            return {name: InputHealth(asked=len(seen)) for name in self.names} if seen else {}
        table = np.nan_to_num(np.array(shown))
        ranges = zip(self.names, table.min(axis=0).tolist(), table.max(axis=0).tolist(), strict=True)
        return {name: InputHealth(len(seen), len(shown), low, high) for name, low, high in ranges}


def _inputs(seen: list[Seen]) -> dict[str, InputHealth]:
    found = dict[str, InputHealth]()
    for name in dict.fromkeys(name for one in seen for name in one.inputs):
        values = [one.inputs[name] for one in seen if name in one.inputs]
        told = [value for value in values if value is not None and math.isfinite(value)]
        if told:
            found[name] = InputHealth(len(values), len(told), min(told), max(told), sum(told))
        else:
            found[name] = InputHealth(len(values))
    return found


def _most(counts: Counter[str]) -> dict[str, int]:
    return {name[:256]: count for name, count in counts.most_common(MOST_REASONS)}
