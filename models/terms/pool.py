"""Coefficients of the members of classes, each drawn towards its class, and that towards a catalogue."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kvferry.models.terms.change import SOON, Change
from kvferry.models.terms.evidence import Sums, length, moments
from kvferry.models.terms.members import Key, Members
from kvferry.models.terms.regression import NOISE, Belief, doubt, pull, solve
from kvferry.policy.candidates import Floats

# Others of its class say what a member is like to within this many of the prior's deviations; not so of one
# that was seen to change.
CHANGED_DIFFER = 5.0
# No member says more about its class than so many samples.
MOST_OF_MEMBER = 20.0
SETTLED = 5.0
REFRESH_S = 5.0
MOST = 1e9


class Prior(NamedTuple):
    """Of the coefficients [n]: mean, standard deviation and lowest value, by a catalogue."""

    mean: Floats
    sd: Floats
    low: Floats


@dataclass(slots=True, eq=False)
class Pool:
    """y = known + x . coefficients, per member; a key's elements from `class_at` on name its class.

        u = (coefficients - prior mean) / prior sd,                u ~ N(0, 1)       by the catalogue
        class posterior: from the samples of its other members,    relative noise NOISE
        member's prior:  class posterior, covariance + members_differ^2

    Samples weigh 1 / (NOISE^2 * seen * expected), and less when they are odd (`regression.pull`); all fade
    (`Members`). `Change` tells when a member is no longer what it was.
    """

    size: int
    half_life_s: float
    class_at: int
    members_differ: float
    up_limit: float = SOON
    members: Members = field(init=False)
    count: int = 0
    drift: float = 0.0
    changes: int = 0
    _alarms: dict[Key, Change] = field(default_factory=dict)
    _beliefs: dict[Key, Belief] = field(default_factory=dict)
    _said: dict[Key, Floats] = field(default_factory=dict)
    _classes: dict[Key, Floats] = field(default_factory=dict)
    _turn: int = 0
    _fresh_s: float = -math.inf

    def __post_init__(self) -> None:
        self.members = Members(self.size, self.half_life_s)

    def learn(
        self,
        key: Key,
        prior: Prior,
        x: Sequence[float],
        seen: float,
        known: float,
        jitter: float,
        now_s: float,
    ) -> None:
        """One sample: `seen` = known + x . coefficients. What no clock can have measured says nothing."""
        if not (all(abs(value) <= MOST for value in (*x, seen, known)) and seen >= 0.0):
            return
        row = np.array(x)
        (belief,) = self.beliefs([key], lambda _: prior, now_s)
        part, sd = belief.predict(row)
        z, scale = doubt(seen, known + part, sd, jitter)
        believed = pull(z, settled=belief.count >= SETTLED)
        self.count += 1
        off = math.log(max(seen, jitter) / max(known + part, jitter))
        self.drift += 0.05 * (min(max(off, -3.0), 3.0) - self.drift)
        if belief.count >= SETTLED and self._alarms.setdefault(key, Change(self.up_limit)).seen(z):
            self.changed(key, now_s)
            believed = 1.0
        try:
            sample = Sums.of(x, seen - known, believed / scale, believed, now_s)
        except ValueError:  # numbers that no machine measures
            return
        self.members.add(key, sample)
        if belief.count < 2 * SETTLED:
            self._outdated(key)

    def changed(self, key: Key, now_s: float) -> None:
        """What was known of it is of little use from now on."""
        self.members.changed(key, now_s)
        self._outdated(key)
        self.changes += 1

    def news(self) -> None:
        """Other routers were heard, or a restart was made good."""
        self._fresh_s = -math.inf

    def turn(self, now_s: float) -> int:
        """Another number when beliefs are others: after REFRESH_S, or soon after where little is known."""
        if not 0.0 <= now_s - self._fresh_s < REFRESH_S:
            self._beliefs.clear()
            self._gather(now_s)
            self._fresh_s = now_s
            self._turn += 1
        return self._turn

    def beliefs(self, keys: Sequence[Key], prior_of: Callable[[int], Prior], now_s: float) -> list[Belief]:
        """What to expect of each; `prior_of`: the catalogue's word on the key at a place."""
        self.turn(now_s)
        missing = [place for place, key in enumerate(keys) if key not in self._beliefs]
        if missing:
            self._beliefs |= self._solved(
                [keys[place] for place in missing], [prior_of(place) for place in missing], now_s
            )
        return [self._beliefs[key] for key in keys]

    def _outdated(self, key: Key) -> None:
        self._beliefs.pop(key, None)
        self._turn += 1

    def _gather(self, now_s: float) -> None:
        """What members say of their classes."""
        keys = list(self.members.known())
        rows = np.array([self.members.evidence(key, now_s).sums.values for key in keys]).reshape(
            -1, length(self.size)
        )
        rows *= np.minimum(1.0, MOST_OF_MEMBER / np.maximum(rows[:, -1:], 1e-9))
        self._said = dict(zip(keys, rows, strict=True))
        self._classes = {}
        for key, row in self._said.items():
            name = key[self.class_at :]
            self._classes[name] = self._classes.get(name, 0.0) + row

    def _solved(self, keys: list[Key], priors: list[Prior], now_s: float) -> dict[Key, Belief]:
        members = [self.members.evidence(key, now_s) for key in keys]
        own = np.array([member.sums.values for member in members])
        differ = np.array([CHANGED_DIFFER if one.changed_s else self.members_differ for one in members])
        none = np.zeros(own.shape[1])
        rest = np.array(
            [self._classes.get(key[self.class_at :], none) - self._said.get(key, none) for key in keys]
        )
        mean, sd, low = (np.array(column) for column in zip(*priors, strict=True))
        unit = np.broadcast_to(np.eye(self.size), (len(keys), self.size, self.size))
        bound = (low - mean) / sd
        gram, moment = self._scaled(rest, mean, sd)
        middle, doubt_of_class = solve(unit, gram, moment, bound)
        around = doubt_of_class + differ[:, None, None] ** 2 * unit
        precision = np.asarray(np.linalg.inv(around), dtype=np.float64)
        gram, moment = self._scaled(own, mean, sd)
        moment += np.einsum("kij,kj->ki", precision, middle)
        u, covariance = solve(precision, gram, moment, bound)
        means, covariances = mean + sd * u, covariance * sd[:, :, None] * sd[:, None, :]
        counts = own[:, -1].tolist()
        return {
            key: Belief(means[place], covariances[place], counts[place]) for place, key in enumerate(keys)
        }

    def _scaled(self, values: Floats, mean: Floats, sd: Floats) -> tuple[Floats, Floats]:
        """Sums as of u, over the noise."""
        gram, moment = moments(values, self.size)
        moment = (moment - np.einsum("kij,kj->ki", gram, mean)) * sd / NOISE**2
        return gram * sd[:, :, None] * sd[:, None, :] / NOISE**2, moment
