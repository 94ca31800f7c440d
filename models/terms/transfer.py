"""What moves take on each link, in the long run: learned offset, cost of bytes, and of descriptors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvferry.models.terms.change import LATE
from kvferry.models.terms.members import Key
from kvferry.models.terms.pool import Pool, Prior
from kvferry.models.terms.regression import Belief
from kvferry.models.terms.way import Way, Wire
from kvferry.policy.link import Link

HALF_LIFE_S = 1800.0
# Links of a class share what their class is, and not how many others use them, or how they are wired.
LINKS_DIFFER = 0.6
JITTER_S = 1e-3
OFFSET_S = 5e-3
LEAST_FACTOR = 0.02
# A sample moves a link's scale by at most so much, as a logarithm: a path that is a hundred times slower than
# its class is known after some 20.
SCALE_STEP = 0.3
MOST_SCALE = 1e4
MOST_S = 1e6


def new_pool() -> Pool:
    """A link that became slower is followed by `LinkSpeeds` first: the pool takes that for lasting late."""
    return Pool(size=3, half_life_s=HALF_LIFE_S, class_at=2, members_differ=LINKS_DIFFER, up_limit=LATE)


@dataclass(slots=True, eq=False)
class Transfers:
    """Seconds of a move on a link, for a kind of layout relation, while it has the link's usual speed:

        took = alpha + handoff + meeting + offset
             + (bytes / beta * byte factor + gamma * descriptors * descriptor factor) * (1 + others)

    with alpha to gamma of the link's catalogue entry; of a move behind a prefill, the part that was waited
    for (`hidden.waited_for`). The three that are learned: offset in seconds (by the catalogue 0, give or take
    OFFSET_S and half the latency), and two factors (the link's scale, give or take itself), per (source,
    destination, transport, relation, path class), drawn towards other links of the same transport, relation
    and class. The scale, 1 at first, is a running median of what the wire took over what the catalogue says:
    against a catalogue that is far off, every true sample would be an odd one.

        ln scale <- ln scale + SCALE_STEP * m / (m + OFFSET_S) * clip(ln((took + OFFSET_S) / (scale * wire +
            OFFSET_S)), -1, 1),    m = sqrt(took * scale * wire): a move that is all latency says nothing
    """

    pool: Pool = field(default_factory=new_pool)
    _scales: dict[Key, float] = field(default_factory=dict)

    def whole(self, way: Way, relation: str, wire: Wire, busy_s: float, now_s: float) -> None:
        """A move was `busy_s` on the wire, all told."""
        self._learn(way.link, relation, (0.0, wire.bytes_s, wire.posting_s), busy_s, 0.0, now_s)

    def seen(
        self, way: Way, relation: str, wire: Wire, piece: tuple[float, float], around_s: float,
        seen_s: float, now_s: float,
    ) -> None:  # fmt: skip
        """A move took `seen_s` beyond its prefill, `around_s` of which the catalogue says are not the wire's;
        `piece`: as of `hidden.waited_for`."""
        share, hidden_s = piece
        x = (1.0, share * wire.bytes_s, share * wire.posting_s)
        self._learn(way.link, relation, x, seen_s, around_s - hidden_s, now_s)

    def beliefs(self, links: Sequence[Link], relations: Sequence[str], now_s: float) -> list[Belief]:
        """(offset, byte factor, descriptor factor) of each."""
        keys = [key_of(link, relation) for link, relation in zip(links, relations, strict=True)]
        return self.pool.beliefs(keys, lambda place: self._prior(links[place], keys[place]), now_s)

    def _learn(
        self, link: Link, relation: str, x: tuple[float, float, float], seen_s: float, known_s: float,
        now_s: float,
    ) -> None:  # fmt: skip
        if min(x) < 0.0 or not 0.0 < x[1] + x[2] < math.inf:
            return
        key = key_of(link, relation)
        self.pool.learn(key, self._prior(link, key), x, seen_s, known_s, JITTER_S, now_s)
        (belief,) = self.pool.beliefs([key], lambda place: self._prior(link, key), now_s)
        self._scale(key, x[1] + x[2], seen_s - known_s - x[0] * float(belief.mean[0]))

    def _scale(self, key: Key, wire_s: float, took_s: float) -> None:
        scale, took_s = self._scales.get(key, 1.0), max(took_s, 0.0)
        if not (took_s < MOST_S and scale * wire_s < MOST_S):
            return
        tells_s = math.sqrt(took_s * scale * wire_s)
        off = math.log((took_s + OFFSET_S) / (scale * wire_s + OFFSET_S))
        scale *= math.exp(SCALE_STEP * tells_s / (tells_s + OFFSET_S) * min(max(off, -1.0), 1.0))
        self._scales[key] = min(max(scale, LEAST_FACTOR), MOST_SCALE)

    def _prior(self, link: Link, key: Key) -> Prior:
        latency_s, scale = link.alpha_s + link.handoff_s, self._scales.get(key, 1.0)
        return Prior(
            np.array((0.0, scale, scale)),
            np.array((OFFSET_S + 0.5 * latency_s, max(1.0, 0.7 * scale), max(1.0, 0.7 * scale))),
            np.array((-latency_s, LEAST_FACTOR, LEAST_FACTOR)),
        )


def key_of(link: Link, relation: str) -> Key:
    return link.src_host, link.dst_host, link.transport, relation, link.path_class
