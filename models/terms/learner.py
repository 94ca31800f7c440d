"""What requests that ended teach of every term, and what the next decisions are to believe."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kvferry.models.calibration import Bias, Calibration
from kvferry.models.link_speed import LinkSpeeds
from kvferry.models.terms.hidden import NOISE_S, nearest_s, waited_for
from kvferry.models.terms.members import MOST_MEMBERS, Key
from kvferry.models.terms.overhead import Overheads
from kvferry.models.terms.pool import Pool
from kvferry.models.terms.prefill import Prefills
from kvferry.models.terms.repack import Repacks
from kvferry.models.terms.runs import Runs
from kvferry.models.terms.spread import Spread, Spreads
from kvferry.models.terms.told import decode, encode
from kvferry.models.terms.transfer import Transfers, key_of
from kvferry.models.terms.way import Path, Way, base_of, path_of
from kvferry.policy.candidates import Floats
from kvferry.policy.link import Link
from kvferry.policy.worker import Speed, Worker


class Move(NamedTuple):
    """What was seen of one: its `busy_s` on the wire, or what it took beyond a prefill of `prefill_s`
    (`seen_s`, give or take `noise_s`), or both. `guessed`: from what other terms left over."""

    way: Way
    relation: str
    moved_bytes: float
    descriptors: float
    busy_s: float | None = None
    seen_s: float | None = None
    prefill_s: float = 0.0
    noise_s: float = NOISE_S
    guessed: bool = False


class _Links(NamedTuple):
    """What is believed of the links of a table, and since when: [3, L] offset and factors."""

    links: Sequence[Link]
    turn: int
    paths: list[Path]
    columns: Floats


@dataclass(slots=True, eq=False)
class Learner:
    """The same in a router and in the simulated one. Biases and spreads are per model.

    `clock` reads Unix seconds, as routers compare times, but must not jump. It is a `models.evidence.
    Evidence`: what routers share are the sums behind links', workers' and repacks' coefficients, and the
    latest moves. Biases and spreads are a router's own: they say how its own predictions fare.
    """

    clock: Callable[[], float]
    name: str = "terms"
    speeds: LinkSpeeds = field(default_factory=LinkSpeeds)
    transfers: Transfers = field(default_factory=Transfers)
    prefills: Prefills = field(default_factory=Prefills)
    repacks: Repacks = field(default_factory=Repacks)
    runs: Runs = field(default_factory=Runs)
    lost_moves: int = 0
    _moves: int = 0
    _restored: int = 0
    _calibrations: dict[str, Calibration] = field(default_factory=dict)
    _spreads: dict[str, Spreads] = field(default_factory=dict)
    _overheads: dict[str, Overheads] = field(default_factory=dict)
    _moving: dict[Key, Spread] = field(default_factory=dict)
    _known: "_Links | None" = None
    _flying: dict[str, tuple[Way, str, float, float]] = field(default_factory=dict)

    # What decisions believe

    def state(self, model: str, links: Sequence[Link], relations: Sequence[str]) -> dict[str, Floats]:
        """By the names of `State`: what was learned of a model's requests and of links; `relations`: the kind
        of layout relation for which each link is in the table."""
        bias, spreads = self.calibration(model), self.spreads(model)
        state = {
            "ttft_bias": np.array(bias.ttft),
            "itl_bias": np.array(bias.itl),
            "ttft_wide": np.array(spreads.ttft_wide),
            "itl_wide": np.array(spreads.itl_wide),
            "transfer_wide": np.array([spreads.transfer.wide]),
            "queue_base_s": np.array(self.overheads(model).base_s),
        }
        if not links:
            return state
        now_s = self.clock()
        known = self._known
        turn = self.transfers.pool.turn(now_s)
        if known is None or known.links is not links or known.turn != turn:
            known = self._known = self._links(links, relations, now_s)
        return state | {
            "link_slowness": np.array(self.speeds.slowness(known.paths, now_s)),
            "link_offset_s": known.columns[0],
            "link_byte_factor": known.columns[1],
            "link_descriptor_factor": known.columns[2],
            "link_wide": np.array([*map(self._wide, links, relations)]),
            "link_more_per_byte": np.array([*map(self.more_per_byte, links, relations)]),
        }

    def _links(self, links: Sequence[Link], relations: Sequence[str], now_s: float) -> "_Links":
        beliefs = self.transfers.beliefs(links, relations, now_s)
        columns, paths = np.array([belief.mean for belief in beliefs]).T, [path_of(link) for link in links]
        factors = columns[1:].T.tolist()
        for path, link in zip(paths, links, strict=True):
            self.speeds.based(path, base_of(link))
        for path, relation, (by_byte, by_descriptor) in zip(paths, relations, factors, strict=True):
            self.speeds.known(path, relation, by_byte, by_descriptor)
        return _Links(links, self.transfers.pool.turn(now_s), paths, columns)

    def _wide(self, link: Link, relation: str) -> float:
        found = self._moving.get(key_of(link, relation))
        return 0.0 if found is None else found.wide

    def more_per_byte(self, link: Link, relation: str) -> float:
        """Descriptors beyond those of a prompt in one piece."""
        return self.runs.more_per_byte(key_of(link, relation))

    def worker_speeds(self, workers: Iterable[tuple[Worker, Speed]]) -> list[Speed]:
        """Of workers, given what their counters say."""
        return self.prefills.speeds(workers, self.clock())

    def repack_s_per_byte(self, relations: Sequence[str], assumed: Sequence[float]) -> list[float]:
        return self.repacks.s_per_byte(relations, assumed, self.clock())

    def calibration(self, model: str) -> Calibration:
        return self._calibrations.setdefault(model, Calibration())

    def spreads(self, model: str) -> Spreads:
        return self._spreads.setdefault(model, Spreads())

    def overheads(self, model: str) -> Overheads:
        return self._overheads.setdefault(model, Overheads())

    # What requests teach

    def sent(
        self, attempt: str, way: Way, relation: str, moved_bytes: float, descriptors: float, due_s: float
    ) -> None:
        """A move goes out; it should start by `due_s`."""
        wire = way.wire(moved_bytes, descriptors, relation)
        self.speeds.begin(attempt, way.path, due_s + way.around_s(moved_bytes), wire)
        self._flying[attempt] = (way, relation, moved_bytes, descriptors)

    def arrived(self, attempt: str) -> None:
        """Its KV is there, or nobody waits for it any more."""
        self.speeds.end(attempt)
        self._flying.pop(attempt, None)

    def lost(self, attempt: str) -> None:
        """It was given up before its KV was there: if it was late, it would have taken at least so long."""
        flying, now_s = self._flying.pop(attempt, None), self.clock()
        at_least_s = self.speeds.lost(attempt, now_s)
        if flying is None or at_least_s is None:
            return
        way, relation, moved_bytes, descriptors = flying
        self.lost_moves += 1
        self.transfers.whole(way, relation, way.wire(moved_bytes, descriptors, relation), at_least_s, now_s)

    def moved(self, move: Move) -> None:
        """What was waited for tells more than what the library counted: it is what is predicted."""
        way, now_s = move.way, self.clock()
        wire = way.wire(move.moved_bytes, move.descriptors, move.relation)
        if move.seen_s is None:
            if move.busy_s is not None:
                self.speeds.observe(way.path, wire, move.busy_s, now_s)
                self.transfers.whole(way, move.relation, wire, move.busy_s, now_s)
                self._moves += 1
            return
        around_s = way.around_s(move.moved_bytes)
        (belief,) = self.transfers.beliefs([way.link], [move.relation], now_s)
        offset_s, by_byte, by_descriptor = belief.mean.tolist()
        visible_s = move.seen_s - around_s - offset_s
        behind = (move.prefill_s, way.new_tokens, way.chunk_tokens)
        expected_s = by_byte * wire.bytes_s + by_descriptor * wire.posting_s
        self.speeds.known(way.path, move.relation, by_byte, by_descriptor)
        took_s = nearest_s(expected_s, visible_s, *behind, move.noise_s)
        self.speeds.observe(way.path, wire, took_s, now_s)
        self._moves += 1
        if not move.guessed:
            piece = waited_for(max(visible_s, 0.0), *behind)
            self.transfers.seen(way, move.relation, wire, piece, around_s, move.seen_s, now_s)

    def travelled(self, link: Link, relation: str, p90_s: float, seen_s: float) -> None:
        """What was seen of a move, and the structured 90th percentile of that."""
        if len(self._moving) > MOST_MEMBERS:
            del self._moving[next(iter(self._moving))]
        self._moving.setdefault(key_of(link, relation), Spread()).observe(seen_s, p90_s)

    def scattered(self, link: Link, relation: str, more: float, moved_bytes: float) -> None:
        """A move took `more` descriptors than it would have with its pages side by side."""
        self.runs.seen(key_of(link, relation), more, moved_bytes)

    def prefilled(
        self, worker: Worker, counted: Speed, new_tokens: float, cached_tokens: float, took_s: float
    ) -> None:
        """A prompt had the worker's prefill to itself; `counted`: the speed its counters show."""
        self.prefills.computed(worker, counted, new_tokens, cached_tokens, took_s, self.clock())

    def repacked(self, relation: str, assumed_s_per_byte: float, moved_bytes: float, took_s: float) -> None:
        self.repacks.done(relation, assumed_s_per_byte, moved_bytes, took_s, self.clock())

    def answered(
        self,
        model: str,
        *,
        split: bool,
        ttft_s: tuple[float | None, float | None, float | None],
        itl_s: tuple[float | None, float | None, float | None],
        queue_s: tuple[float | None, float | None] = (None, None),
        included: Bias | None = None,
    ) -> None:
        """A request ran as it was predicted: (structured median, 90th percentile, actual) of its times, and
        (structured, actual) of its wait.
        `included`: see `Calibration`."""
        self.calibration(model).observe(split, ttft_s[0], ttft_s[2], itl_s[0], itl_s[2], included=included)
        spreads = self.spreads(model)
        spreads.ttft[split].observe(ttft_s[2], ttft_s[1])
        spreads.itl[split].observe(itl_s[2], itl_s[1])
        self.overheads(model).by_mode[split].observe(*queue_s)

    # What routers tell each other (models.evidence.Evidence)

    @property
    def revision(self) -> int:
        return (
            self._moves + self.lost_moves + self._restored + sum(pool.count for pool in self._pools.values())
        )

    def snapshot(self) -> bytes:
        return encode(self._pools, self.speeds.told(), self.clock())

    def restore(self, told: bytes) -> None:
        found, moves = decode(told, self._sizes, self.clock())
        for name, members in found.items():
            self._pools[name].members.restore(members)
            self._pools[name].news()
        for move in sorted(moves, key=lambda move: move.time_s):
            self.speeds.observe(move.path, move.wire, move.took_s, move.time_s, move.noise_s)
        self._restored += 1

    def hear(self, router: str, told: bytes) -> None:
        found, moves = decode(told, self._sizes, self.clock())
        for name, members in found.items():
            self._pools[name].members.hear(router, members)
            self._pools[name].news()
        self.speeds.hear(router, moves)

    def weigh(self, router: str, share: float) -> None:
        for pool in self._pools.values():
            pool.members.weigh(router, share)
            pool.news()
        if not share > 0.0:
            self.speeds.hear(router, ())

    # How learning is doing

    def counts(self) -> dict[str, int]:
        """Samples that were learned from since the start, by term."""
        counts = {name: pool.count for name, pool in self._pools.items()}
        spreads = list(self._spreads.values())
        return counts | {
            "link_speed": self._moves,
            "lost_moves": self.lost_moves,
            "ttft": sum(one.count for each in spreads for one in each.ttft),
            "itl": sum(one.count for each in spreads for one in each.itl),
        }

    def drift(self) -> dict[str, float]:
        """ln(actual / expected) of late, by term, where there were samples: 0 when predictions are right. Of
        TTFT and ITL it is the bias that decisions are corrected by, where it is farthest from 0."""
        drift = {name: pool.drift for name, pool in self._pools.items() if pool.count}
        known = self._calibrations.values()
        biases = {
            "ttft": [x for one in known for x in one.ttft],
            "itl": [x for one in known for x in one.itl],
        }
        return drift | {name: max(found, key=abs) for name, found in biases.items() if found}

    def changes(self) -> dict[str, int]:
        """How often a link, worker or relation was seen to have changed for good, by term."""
        return {name: pool.changes for name, pool in self._pools.items()}

    @property
    def _pools(self) -> dict[str, Pool]:
        return {
            "transfer": self.transfers.pool,
            "prefill": self.prefills.pool,
            "repack": self.repacks.pool,
        }

    @property
    def _sizes(self) -> dict[str, int]:
        return {name: pool.size for name, pool in self._pools.items()}
