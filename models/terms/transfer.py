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
    OFFSET_S and half the latency), and two factors (1, give or take 1), per (source, destination, transport,
    relation, path class), drawn towards other links of the same transport, relation and class.
    """

    pool: Pool = field(default_factory=new_pool)

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
        return self.pool.beliefs(keys, lambda place: _prior(links[place]), now_s)

    def _learn(
        self, link: Link, relation: str, x: tuple[float, float, float], seen_s: float, known_s: float,
        now_s: float,
    ) -> None:  # fmt: skip
        if min(x) < 0.0 or not 0.0 < x[1] + x[2] < math.inf:
            return
        key, prior = key_of(link, relation), _prior(link)
        self.pool.learn(key, prior, x, seen_s, known_s, JITTER_S, now_s)


def key_of(link: Link, relation: str) -> Key:
    return link.src_host, link.dst_host, link.transport, relation, link.path_class


def _prior(link: Link) -> Prior:
    latency_s = link.alpha_s + link.handoff_s
    return Prior(
        np.array((0.0, 1.0, 1.0)),
        np.array((OFFSET_S + 0.5 * latency_s, 1.0, 1.0)),
        np.array((-latency_s, LEAST_FACTOR, LEAST_FACTOR)),
    )
