"""A link nobody has measured, whose true costs are not the catalogue's."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from kvferry.models.terms.learner import Learner, Move
from kvferry.models.terms.way import Way
from kvferry.policy.link import Link

TCP = Link("p", "d", "mooncake", "tcp_25g", 5e-5, 2.4e9, 1.2e9, 5e-6, handoff_s=1.8e-3, merges_runs=True)
NDR = Link("p", "d", "nixl", "ib_ndr400", 2e-5, 41e9, 20e9, 1e-6, handoff_s=1.8e-3)
# one run of pages a chunk against a descriptor per page and layer
KINDS = {"merged": TCP, "scattered": NDR}
BYTES_PER_TOKEN = 262_144
DESCRIPTORS_PER_TOKEN = {"merged": 0.0, "scattered": 8.0}
CHUNK_TOKENS = 2048
PREFILL_S_PER_TOKEN = 5e-5
NOISE = 0.1
OUTLIERS = 0.03


@dataclass(slots=True)
class Clock:
    now_s: float = 1e9

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True)
class Truth:
    """Of one link: what is added to a move, and factors on the catalogue's cost of bytes and descriptors."""

    offset_s: float
    byte_factor: float
    descriptor_factor: float

    @classmethod
    def drawn(cls, rng: random.Random) -> "Truth":
        """A third to three times what the catalogue says, and up to 20 ms more."""
        within = math.log(3.0)
        return cls(
            rng.uniform(0.0, 0.02),
            math.exp(rng.uniform(-within, within)),
            math.exp(rng.uniform(-within, within)),
        )


def errors(kind: str, seed: int, moves: int = 100) -> Iterator[tuple[float, float]]:
    """|predicted / true - 1| of what is seen of each move, before it is learned from: by what was learned,
    and by the catalogue. Moves have prompts of 16 to 32,000 tokens behind a prefill in chunks, up to three
    others on the link, noise, and now and then one that takes five times as long."""
    rng, clock = random.Random(f"{kind}/{seed}"), Clock()
    learner, truth, link = Learner(clock), Truth.drawn(rng), KINDS[kind]
    for _ in range(moves):
        clock.now_s += rng.expovariate(1.0)
        tokens = math.exp(rng.uniform(math.log(16), math.log(32_000)))
        moved, descriptors = tokens * BYTES_PER_TOKEN, tokens * DESCRIPTORS_PER_TOKEN[kind] + 4.0
        way = Way(link, rng.randrange(4), tokens, CHUNK_TOKENS)
        prefill_s = tokens * PREFILL_S_PER_TOKEN
        state = learner.state("m", [link], ["direct"])
        slowness = float(state["link_slowness"][0])
        learned = Truth(
            float(state["link_offset_s"][0]),
            float(state["link_byte_factor"][0]) * slowness,
            float(state["link_descriptor_factor"][0]) * slowness,
        )
        true_s = seen_s(way, truth, moved, descriptors, prefill_s)
        believed_s = seen_s(way, learned, moved, descriptors, prefill_s)
        catalogue_s = seen_s(way, Truth(0.0, 1.0, 1.0), moved, descriptors, prefill_s)
        yield abs(believed_s / true_s - 1.0), abs(catalogue_s / true_s - 1.0)
        took_s = true_s * math.exp(rng.gauss(0.0, NOISE)) * (5.0 if rng.random() < OUTLIERS else 1.0)
        learner.moved(Move(way, "direct", moved, descriptors, seen_s=took_s, prefill_s=prefill_s))


def seen_s(way: Way, truth: Truth, moved: float, descriptors: float, prefill_s: float) -> float:
    """What of a move outlasts its prefill: as `kvferry.policy.predict` has it, in scalars."""
    wire = way.wire(moved, descriptors)
    wire_s = wire.bytes_s * truth.byte_factor + wire.posting_s * truth.descriptor_factor
    chunk = min(way.chunk_tokens / way.new_tokens, 1.0)
    last = 1.0 - (math.ceil(way.new_tokens / way.chunk_tokens) - 1.0) * chunk
    late = min(chunk + last, 1.0)
    visible_s = max(wire_s - prefill_s * (1.0 - chunk), wire_s * last, wire_s * late - prefill_s * last)
    return visible_s + way.around_s(moved) + truth.offset_s
