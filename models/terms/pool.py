"""Coefficients of the members of classes, each drawn towards its class, and that towards a catalogue."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kvferry.models.terms.change import SOON, Change
from kvferry.models.terms.evidence import Sums, moments
from kvferry.models.terms.regression import NOISE, Belief, doubt, pull, solve
from kvferry.policy.candidates import Floats

Key = tuple[str, ...]

# Others of its class say what a member is like to within this many of the prior's deviations; not so of one
# that was seen to change.
CHANGED_DIFFER = 5.0
# No member says more about its class than so many samples.
MOST_OF_MEMBER = 20.0
# What a change leaves of the evidence before it. Of what became ten times slower, an old sample weighs as
# much as a hundred new ones.
AFTER_CHANGE = 1e-4
# Few samples are soon tried again: their weight halves when there was none for so long per sample.
RETRY_S = 15.0
SETTLED = 5.0
REFRESH_S = 5.0
MOST_MEMBERS = 512


@dataclass(slots=True)
class Member:
    """`changed_s`: when it was last seen to have changed (0: never)."""

    sums: Sums
    changed_s: float = 0.0


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
    with `half_life_s`. When a member changes (`Change`), AFTER_CHANGE of its evidence is left, that of other
    routers included. `own` is of this router, `theirs` of others, with the share to which each still counts.
    """

    size: int
    half_life_s: float
    class_at: int
    members_differ: float
    up_limit: float = SOON
    own: dict[Key, Member] = field(default_factory=dict)
    theirs: dict[str, dict[Key, Member]] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    count: int = 0
    drift: float = 0.0
    changes: int = 0
    _alarms: dict[Key, Change] = field(default_factory=dict)
    _beliefs: dict[Key, Belief] = field(default_factory=dict)
    _turn: int = 0
    _fresh_s: float = -math.inf

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
        """One sample: `seen` = known + x . coefficients. What is not finite says nothing."""
        if not all(map(math.isfinite, (*x, seen, known, now_s))) or seen < 0.0:
            return
        row = np.array(x)
        (belief,) = self.beliefs([key], lambda _: prior, now_s)
        part, sd = belief.predict(row)
        z, scale = doubt(seen, known + part, sd, jitter)
        believed = pull(z, settled=belief.count >= SETTLED)
        self.count += 1
        off = math.log(max(seen, jitter) / max(known + part, jitter))
        self.drift += 0.05 * (min(max(off, -3.0), 3.0) - self.drift)
        member = self.own.get(key)
        if member is None:
            self._make_room()
            member = self.own[key] = Member(Sums.none(self.size))
        if belief.count >= SETTLED and self._alarms.setdefault(key, Change(self.up_limit)).seen(z):
            self.changed(key, now_s)
            believed = 1.0
        try:
            sample = Sums.of(x, seen - known, believed / scale, believed, now_s)
        except ValueError:  # numbers that no machine measures
            return
        member.sums = member.sums.plus(sample, self.half_life_s)
        if belief.count < 2 * SETTLED:
            self._outdated(key)

    def changed(self, key: Key, now_s: float) -> None:
        """What was known of it is of little use from now on."""
        member = self.own.setdefault(key, Member(Sums.none(self.size)))
        self.own[key] = Member(member.sums.faded(now_s, self.half_life_s).times(AFTER_CHANGE), now_s)
        self._outdated(key)
        self.changes += 1

    def turn(self, now_s: float) -> int:
        """Another number when beliefs are others: after REFRESH_S, or soon after where little is known."""
        if not 0.0 <= now_s - self._fresh_s < REFRESH_S:
            self._beliefs.clear()
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

    def evidence(self, key: Key, now_s: float) -> Member:
        """All that routers have seen of a member, as it weighs now."""
        found = [(1.0, self.own[key])] if key in self.own else []
        found += [
            (self.shares.get(router, 1.0), members[key])
            for router, members in self.theirs.items()
            if key in members
        ]
        changed_s = max((member.changed_s for _, member in found), default=0.0)
        total = Sums.none(self.size)
        for share, member in found:
            told = share if member.changed_s >= changed_s else share * AFTER_CHANGE
            total = total.plus(member.sums if told == 1.0 else member.sums.times(told), self.half_life_s)
        last_s = total.time_s
        total = total.faded(now_s, self.half_life_s)
        idle = max(0.0, now_s - last_s) / (RETRY_S * (1.0 + total.count))
        return Member(total.times(2.0**-idle), changed_s)

    def hear(self, router: str, members: dict[Key, Member], now_s: float) -> None:
        """All that another router has seen, in place of what it told before."""
        self.theirs[router] = members
        self.shares.setdefault(router, 1.0)
        for key, member in members.items():
            mine = self.own.get(key)
            if mine is not None and mine.changed_s < member.changed_s <= now_s:
                self.own[key] = dataclasses.replace(
                    mine, sums=mine.sums.times(AFTER_CHANGE), changed_s=member.changed_s
                )
        self._fresh_s = -math.inf

    def weigh(self, router: str, share: float) -> None:
        self.shares[router] = min(max(share, 0.0), 1.0)
        if not share > 0.0:
            self.theirs.pop(router, None)
            self.shares.pop(router, None)
        self._fresh_s = -math.inf

    def restore(self, members: dict[Key, Member]) -> None:
        """From before a restart."""
        for key, member in itertools.islice(members.items(), MOST_MEMBERS):
            mine = self.own.get(key, Member(Sums.none(self.size)))
            changed_s = max(mine.changed_s, member.changed_s)
            before = member.sums if member.changed_s >= mine.changed_s else member.sums.times(AFTER_CHANGE)
            self.own[key] = Member(mine.sums.plus(before, self.half_life_s), changed_s)
        self._fresh_s = -math.inf

    def known(self) -> Iterator[Key]:
        told = (members.keys() for members in self.theirs.values())
        return iter(dict.fromkeys(itertools.chain(self.own, *told)))

    def _make_room(self) -> None:
        while len(self.own) >= MOST_MEMBERS:
            oldest = min(self.own, key=lambda key: self.own[key].sums.time_s)
            del self.own[oldest]
            self._alarms.pop(oldest, None)

    def _solved(self, keys: list[Key], priors: list[Prior], now_s: float) -> dict[Key, Belief]:
        classes = {key[self.class_at :] for key in keys}
        known = {key: self.evidence(key, now_s) for key in self.known() if key[self.class_at :] in classes}
        none = Member(Sums.none(self.size))
        members = [known.get(key, none) for key in keys]
        own = np.array([member.sums.values for member in members])
        differ = np.array([CHANGED_DIFFER if one.changed_s else self.members_differ for one in members])
        told = {key: np.array(_at_most(member.sums).values) for key, member in known.items()}
        pools = {name: np.zeros(own.shape[1]) for name in classes}
        for key, values in told.items():
            pools[key[self.class_at :]] += values
        rest = np.array([pools[key[self.class_at :]] - told.get(key, 0.0) for key in keys])
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


def _at_most(sums: Sums) -> Sums:
    """No more than one member may say about its class."""
    return sums.times(MOST_OF_MEMBER / sums.count) if sums.count > MOST_OF_MEMBER else sums
