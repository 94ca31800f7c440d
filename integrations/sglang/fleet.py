"""The workers as the router knows them now, and the picture of them that a decision is given."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvferry.integrations.log.record import Missing
from kvferry.integrations.sglang.breaker import Breakers, uses
from kvferry.integrations.sglang.describe import snapshot_times
from kvferry.integrations.sglang.kvevents import Holdings
from kvferry.integrations.sglang.lessons import Lessons
from kvferry.integrations.sglang.plugin.wire import LocalLoad, WorkerRecord
from kvferry.integrations.sglang.plugin_info import PluginInfo
from kvferry.integrations.sglang.telemetry_shape import shape_told
from kvferry.integrations.sglang.telemetry_stalls import StallMeter
from kvferry.models.book import Book, Totals
from kvferry.models.loads import Held, load_of, with_foreign
from kvferry.models.paths.probed import Probed
from kvferry.models.prefix import BLOCK_TOKENS, PrefixIndex
from kvferry.models.prefix_keys import PrefixKeys
from kvferry.models.speedometer import Speedometer, alike
from kvferry.policy.candidates import Candidates
from kvferry.policy.cluster import Cluster, State
from kvferry.policy.link import Link
from kvferry.policy.worker import Speed, Worker

MAX_PREFIX_BLOCKS = 1 << 17
# A plugin sends its load every second: one that was silent for this long does not reach our store.
UNHEARD_AFTER_S = 10.0
NO_PLUGIN = PluginInfo()


@dataclass(slots=True, eq=False)
class Member:
    """One worker: what it said, how fast it is, what it holds, and whether it is alive.

    `vocab_tokens`: how many ids its model knows, where its plugin tells; 0 where nobody does. `counted`: its
    speed as counters alone show it, before what prompts that ended taught.
    `kv` is what it tells of its cache, where it does; `prefixes` what can be guessed from the requests sent.
    `watchers` are called once when the worker goes down: legs on it end instead of waiting. `plugin` is what
    runs inside it, `heard_s` when that last told something (at first: when the worker was admitted).
    """

    worker: Worker
    meter: Speedometer
    prefixes: PrefixIndex
    kv: Holdings | None = None
    watchers: set[Callable[[], object]] = field(default_factory=set)
    why_down: str = ""
    plugin: PluginInfo = NO_PLUGIN
    heard_s: float = 0.0
    vocab_tokens: int = 0
    counted: Speed = Speed()
    stalls: StallMeter = field(default_factory=StallMeter)

    @classmethod
    def of(cls, worker: Worker, plugin: PluginInfo = NO_PLUGIN, now_s: float = 0.0) -> "Member":
        blocks = min(MAX_PREFIX_BLOCKS, worker.max_total_tokens // BLOCK_TOKENS)
        meter, prefixes = Speedometer(worker.speed), PrefixIndex(blocks)
        return cls(worker, meter, prefixes, plugin=plugin, heard_s=now_s, counted=worker.speed)

    def like(self, other: "Member") -> bool:
        """Whether both should be equally fast."""
        return alike(self.worker) == alike(other.worker)

    @property
    def caches_prefixes(self) -> bool:
        return bool(self.worker.facts.get("caches_prefixes"))

    def held(self, hashes: Sequence[int], tokens_per_block: float, prompt: PrefixKeys | None) -> int:
        """Leading prompt tokens that need no prefill here: by KV events where they tell all and the prompt
        can be compared (`prompt` is not None), by own history where they do not, by both in between."""
        told = self.kv.held(prompt) if self.kv and prompt else 0
        if self.kv and prompt and not self.kv.partial:
            return told
        return max(told, int(self.prefixes.held(hashes) * tokens_per_block))


@dataclass(slots=True, eq=False)
class Fleet:
    """Members by id, with the tables compiled from them; `others` is other routers' work in flight,
    `probe_of` what a probe found where a link is.
    `instances`: id of the worker in which each plugin's instance runs. `lessons`: learned from what ended."""

    clock: Callable[[], float]
    link_of: Callable[[Worker, Worker, str], Link]
    book: Book
    breakers: Breakers
    members: dict[str, Member] = field(default_factory=dict)
    others: Callable[[], Mapping[str, Held]] = dict
    probe_of: Callable[[Link], Probed | None] = lambda link: None
    met: set[str] = field(default_factory=set)
    instances: dict[str, str] = field(default_factory=dict)
    lessons: Lessons = field(init=False)
    _tables: dict[str, Candidates] = field(default_factory=dict)
    _states: dict[str, State] = field(default_factory=dict)
    _open: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.lessons = Lessons(self.clock, self._counted)

    def models(self) -> list[str]:
        """Models that some known worker serves."""
        return sorted({member.worker.model for member in self.members.values()})

    def vocab_tokens(self, model: str) -> int:
        """How many ids every worker of a model knows, of those that tell; 0 when none does."""
        known = [one.vocab_tokens for one in self.members.values() if one.worker.model == model]
        return min(filter(None, known), default=0)

    def admit(self, worker: Worker, plugin: PluginInfo = NO_PLUGIN) -> Member:
        """A worker is there (again): its old state, if any, is forgotten."""
        if worker.id in self.members:
            self.breakers.forget(worker.id)
            self.met = {key for key in self.met if not uses(key, worker.id)}
            self.instances = {name: of for name, of in self.instances.items() if of != worker.id}
        member = Member.of(worker, plugin, self.clock())
        self.instances |= dict.fromkeys(plugin.instances, worker.id)
        self.members[worker.id] = member
        self._tables.clear()
        return member

    def learned(self, worker: Worker, plugin: PluginInfo) -> None:
        """What the plugin in a worker does by now."""
        member = self.members[worker.id]
        member.plugin = plugin
        if worker != member.worker:
            member.worker = worker
            self._tables.clear()

    def drop(self, worker_id: str, why: str) -> None:
        """The worker must not be used until it is admitted again; legs on it are ended."""
        member = self.members.get(worker_id)
        if member is None or not member.worker.healthy:
            return
        member.worker = dataclasses.replace(member.worker, healthy=False)
        member.why_down = why
        for watcher in tuple(member.watchers):
            watcher()
        self._tables.clear()

    def relink(self) -> None:
        """`link_of` has other answers by now."""
        self._tables.clear()

    def heard(self, instance: str) -> str | None:
        """The worker whose plugin has just told something; None when it is none of ours."""
        worker_id = self.instances.get(instance)
        if worker_id is not None:
            self.members[worker_id].heard_s = self.clock()
        return worker_id

    def silence(self, worker_id: str) -> Missing | None:
        """Why no telemetry is to be expected from a worker; None when it is."""
        member = self.members[worker_id]
        if not member.plugin.version:
            return "no_plugin"
        if not member.plugin.on("telemetry"):
            return "telemetry_off"
        return "unheard" if self.clock() - member.heard_s > UNHEARD_AFTER_S else None

    def stalled(self, worker_id: str, instance: str, told: LocalLoad) -> None:
        """A plugin has told how long local prefills have held its decodes up."""
        member = self.members[worker_id]
        stall_s = member.stalls.read(instance, told, self.clock())
        if stall_s != member.worker.load.stall_s_per_token:
            load = dataclasses.replace(member.worker.load, stall_s_per_token=stall_s)
            member.worker = dataclasses.replace(member.worker, load=load)
            self._states.pop(member.worker.model, None)

    def described(self, worker_id: str, told: WorkerRecord) -> None:
        """A plugin has told how its worker keeps KV: that ends a guess at it."""
        member = self.members[worker_id]
        member.vocab_tokens = max(0, told.vocab_tokens)
        shape = shape_told(member.worker, told)
        if shape is not None:
            member.worker = dataclasses.replace(member.worker, shape=shape)
            self._tables.clear()

    def read_loads(self, worker_id: str, answer: Mapping[str, Any]) -> None:
        """One poll of GET /v1/loads: counters become the load of others, and the worker's speed."""
        member, now_s = self.members[worker_id], self.clock()
        member.meter.read(answer, now_s)
        counted = member.meter.among(other.meter for other in self.members.values() if other.like(member))
        member.counted = counted
        (speed,) = self.lessons.learner.worker_speeds([(member.worker, counted)])
        colocates = member.worker.can_colocate
        load = with_foreign(
            load_of(answer, now_s),
            member.worker.role,
            self.book.at(now_s - snapshot_age_s(answer), worker_id),
            self.others().get(worker_id, Totals()),
            measured_share=member.meter.share if colocates else 0.0,
            own_share=self.book.prefill_share(worker_id),
            stall_s_per_token=member.worker.load.stall_s_per_token,
        )
        member.worker = dataclasses.replace(member.worker, load=load, speed=speed)
        self._states.pop(member.worker.model, None)

    def cluster(self, model: str, excluded: Iterable[str] = ()) -> Cluster:
        """The picture for one decision: last reports, and work in flight as it is at this moment."""
        tripped = frozenset(self.breakers.open())
        if tripped != self._open:
            self._open = tripped
            self._tables.clear()
        table = self._tables.get(model)
        if table is None:
            workers = [member.worker for member in self.members.values() if member.worker.model == model]
            table = Candidates.build(workers, self.link_of, self.breakers.open(), frozenset(self.met))
            table = self._repacked(table)
            self._tables[model] = table
            self._states.pop(model, None)
        state = self._states.get(model)
        if state is None:
            fresh = tuple(self.members[worker.id].worker for worker in table.workers)
            table = self._tables[model] = dataclasses.replace(table, workers=fresh)
            state = self._states[model] = State.of(table)
        return Cluster(table, self._of_now(model, table, state), self.clock(), frozenset(excluded))

    def _counted(self, worker_id: str) -> tuple[Worker, Speed] | None:
        member = self.members.get(worker_id)
        return None if member is None else (member.worker, member.counted)

    def _repacked(self, table: Candidates) -> Candidates:
        """The table with what repacking has shown to take."""
        kinds = [relation.kind.value if relation else "" for relation in table.relations]
        learned = self.lessons.learner.repack_s_per_byte(kinds, table.repack_s_per_byte.tolist())
        return dataclasses.replace(table, repack_s_per_byte=np.array(learned))

    def contacted(self, plan_key: str) -> None:
        """A pair moved KV for the first time: its next moves pay no first contact."""
        if plan_key not in self.met:
            self.met.add(plan_key)
            self._tables.clear()

    def _of_now(self, model: str, table: Candidates, state: State) -> State:
        """`state` with work in flight, and what was learned."""
        count = len(table.workers)
        prefill, prefill_s, decodes, context, arrivals = (np.zeros(count) for _ in range(5))
        share = state.prefill_share.copy()
        others = self.others()
        for held in (self.book.now, others):
            for worker_id, totals in held.items():
                place = table.index.get(worker_id)
                if place is not None:
                    prefill[place] += totals.prefill_tokens
                    decodes[place] += totals.decodes
                    context[place] += totals.context_tokens
        for place, worker in enumerate(table.workers):
            arrivals[place] = self.book.arrivals_per_s(worker.id)
            prefill_s[place] = self.book.backlog_s(worker.id)
            if worker.can_colocate:
                share[place] += self.book.prefill_share(worker.id)
            if worker.id in others:  # routers tell each other tokens
                prefill_s[place] += others[worker.id].prefill_tokens * worker.speed.prefill_s_per_token
        learned: dict[str, Any] = self.lessons.learner.state(model, table.links, table.link_relations)
        if table.links:
            learned["moves"] = np.array(
                [float(self.book.moves.get(path_key(link), 0)) for link in table.links]
            )
        return dataclasses.replace(
            state,
            own_prefill_tokens=prefill,
            own_prefill_s=prefill_s,
            prefill_share=share,
            own_decodes=decodes,
            own_context_tokens=context,
            arrivals_per_s=arrivals,
            **learned,
        )


def path_key(link: Link) -> str:
    """Moves share a path when they share both hosts and the transport."""
    return f"{link.src_host}>{link.dst_host}@{link.transport}"


def snapshot_age_s(answer: Mapping[str, Any]) -> float:
    """How old the worker's own snapshot was when it answered, both on the worker's clock."""
    taken = [time_s for time_s in snapshot_times(answer) if time_s > 0]
    answered = answer.get("answered_s")
    if not taken or answered is None:
        return 0.0
    return max(0.0, float(answered) - min(taken))
