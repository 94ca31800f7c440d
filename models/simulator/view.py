"""The simulated router: what it knows of the cluster, and nothing else.

It holds what the real router holds, by the same code: own work in flight, speeds read off the workers'
counters, prompts it has sent, and what outcomes have taught. A decision is given a request and a cluster
made of these alone.
"""

import dataclasses
import random
from collections.abc import Iterable

from kvferry.models.book import Book, Entry
from kvferry.models.loads import load_of, with_foreign
from kvferry.models.model_catalogue import find_model
from kvferry.models.output_tokens import OutputTokens
from kvferry.models.prefix import PrefixIndex
from kvferry.models.simulator.events import Events
from kvferry.models.simulator.spec import ClusterSpec, EngineSpec, SLORule
from kvferry.models.simulator.trip import Carriage, Trip
from kvferry.models.simulator.world import path_of as class_of
from kvferry.models.speed_catalogue import UnknownSpeedError, find_speed
from kvferry.models.speedometer import Speedometer, alike
from kvferry.models.terms.learner import Learner, Move
from kvferry.models.terms.way import Path, Way, path_of
from kvferry.policy.candidates import Candidates
from kvferry.policy.cluster import Cluster, State
from kvferry.policy.layout import KVLayout
from kvferry.policy.link import Link
from kvferry.policy.request import Request
from kvferry.policy.worker import Load, Role, Speed, Worker


def worker_of(spec: EngineSpec, transport: str) -> Worker:
    """The worker as it would describe itself to a router."""
    shape = find_model(spec.model).shape
    try:
        prior = find_speed(spec.model, spec.gpu, spec.tp).speed
    except UnknownSpeedError:
        prior = Speed()
    caches = spec.prefix_cache
    return Worker(
        id=spec.id,
        url=f"http://{spec.id}",
        role=spec.role,
        model=spec.model,
        shape=shape,
        layout=KVLayout(page_size=1, tp=spec.tp, mla=shape.mla),
        bootstrap_host=spec.id,
        bootstrap_port=8998 if spec.role is Role.PREFILL else None,
        transports=() if spec.role is Role.COLOCATED else (transport,),
        host=spec.host or spec.id,
        local_prefill=spec.local_prefill,
        mixes_chunks=spec.mixed_chunk,
        max_total_tokens=spec.max_total_tokens,
        max_running_requests=spec.max_running_requests,
        speed=dataclasses.replace(prior, chunk_tokens=spec.chunk_tokens),
        facts={"gpu": spec.gpu, "caches_prefixes": "yes" if caches else ""},
    )


class RouterView:
    """Everything that decisions are made from. `seed` draws the requests' own seeds."""

    def __init__(self, spec: ClusterSpec, events: Events, slo: SLORule, block_tokens: int, seed: int) -> None:
        self.slo = slo
        self.block_tokens = block_tokens
        self.book = Book(lambda: events.now_s)
        self.learner = Learner(lambda: events.now_s)
        self.outputs = OutputTokens()
        self._events = events
        self._path = class_of(spec)
        self._transport = spec.transport
        self._rng = random.Random(f"{seed}/router")
        self._met: dict[str, tuple[int, int]] = {}
        self.workers = [worker_of(each, spec.transport) for each in spec.engines]
        self._model = self.workers[0].model
        self._place = {worker.id: place for place, worker in enumerate(self.workers)}
        self._meters = [Speedometer(worker.speed) for worker in self.workers]
        self._counted = [worker.speed for worker in self.workers]
        self._prefixes = [
            PrefixIndex(worker.max_total_tokens // block_tokens) if worker.facts["caches_prefixes"] else None
            for worker in self.workers
        ]
        self._carriages: dict[str, Carriage] = {}
        self._lost_s = [-1.0] * len(self.workers)
        self._build()

    def request(self, row: int, prompt_tokens: int, max_new_tokens: int, blocks: list[int]) -> Request:
        """The request as it stands at the door: its output is a guess from those that have ended."""
        mean, p90 = self.outputs.expect(max_new_tokens)
        held = {}
        if blocks:
            for worker, prefixes in zip(self.workers, self._prefixes, strict=True):
                if prefixes is not None:
                    count = prefixes.held(blocks)
                    if count:
                        held[worker.id] = min(prompt_tokens, count * self.block_tokens)
        return Request(
            id=str(row),
            model=self.workers[0].model,
            prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
            expected_output_tokens=mean,
            expected_output_tokens_p90=p90,
            slo=self.slo.of(prompt_tokens),
            held_tokens=held,
            seed=self._rng.getrandbits(63),
        )

    def cluster(self, excluded: Iterable[str] = ()) -> Cluster:
        """The picture for one decision."""
        state, table = self.state, self.table
        for place, name in enumerate(self._order):
            own = self.book.now.get(name)
            if own is not None:
                state.own_prefill_tokens[place] = own.prefill_tokens
                state.own_prefill_s[place] = self.book.backlog_s(name)
                state.own_decodes[place] = own.decodes
                state.own_context_tokens[place] = own.context_tokens
            state.arrivals_per_s[place] = self.book.arrivals_per_s(name)
            state.prefill_share[place] = self._foreign_share[place] + self._own_share(name)
        if self._path_keys:
            moves = self.book.moves
            for place, path_key in enumerate(self._path_keys):
                state.moves[place] = moves.get(path_key, 0)
        learned = self.learner.state(self._model, self.table.links, self.table.link_relations)
        for column, values in learned.items():
            getattr(state, column)[:] = values
        return Cluster(table, state, self._events.now_s, frozenset(excluded))

    def dispatched(self, trip: Trip) -> None:
        """A request goes out to its workers."""
        assert trip.decision is not None
        request, decision = trip.request, trip.decision
        pre, dec = self.workers[trip.pre], self.workers[trip.dec]
        path_key = ""
        held = request.held_tokens.get(pre.id, 0)
        own = self.book.now.get(pre.id)
        trip.alone = own is None or own.prefill_tokens <= 0.0
        if trip.split:
            costs, key = decision.costs, decision.plan.key
            if key not in self._carriages:
                self._carriages[key] = Carriage.of(self.table, self._row_of[key])
            trip.carriage = self._carriages[key]
            link = trip.carriage.link
            path_key = _key(path_of(link))
            new_tokens = max(request.prompt_tokens - held, 1)
            trip.way = Way(link, self.book.moves.get(path_key, 0), new_tokens, pre.speed.chunk_tokens)
            due_s = self._events.now_s + costs.queue_s.p90 + costs.prefill_s.p90
            moved = costs.moved_bytes, costs.descriptors
            self.learner.sent(trip.key, trip.way, trip.carriage.relation, *moved, due_s)
        context = request.prompt_tokens + int(request.expected_output_tokens)
        entry = Entry(
            pre.id,
            dec.id,
            path_key,
            max(request.prompt_tokens - held, 1),
            1,
            context,
            start_s=self._events.now_s,
            prefill_s=decision.costs.prefill_s.p50,
        )
        self.book.start(trip.key, entry)
        trip.bias = self.learner.calibration(self._model).bias(split=trip.split)

    def first_token(self, trip: Trip) -> None:
        """The prompt is computed and, if need be, moved."""
        self.book.first_token(trip.key)
        request = trip.request
        held = request.held_tokens.get(self.workers[trip.pre].id, 0)
        self._meters[trip.pre].prefilled(max(1, request.prompt_tokens - held), held)
        for place in dict.fromkeys((trip.pre, trip.dec)):
            prefixes = self._prefixes[place]
            if prefixes is not None:
                prefixes.add(trip.blocks)
        if trip.split:
            self.learner.arrived(trip.key)

    def ended(self, trip: Trip, ttft_s: float, itl_s: float, cached_tokens: int, move_s: float) -> None:
        """The answer is complete; the workers' telemetry tells how long its move had something to send."""
        assert trip.decision is not None
        self._release(trip)
        costs = trip.decision.costs
        if not trip.tries:
            self.learner.answered(
                self._model,
                split=trip.split,
                ttft_s=(costs.structured_ttft_s or costs.ttft_s.p50, costs.ttft_s.p90, ttft_s),
                itl_s=(costs.structured_itl_s or costs.itl_s.p50, costs.itl_s.p90, itl_s),
                included=trip.bias,
            )
        self._computed(trip, cached_tokens)
        assert trip.job is not None
        self.outputs.observe(trip.job.output_tokens)
        prefixes = self._prefixes[trip.pre]
        if prefixes is not None and trip.blocks:
            expected = trip.request.held_tokens.get(self.workers[trip.pre].id, 0)
            prefixes.correct(expected // self.block_tokens, cached_tokens // self.block_tokens)
        if trip.carriage is not None and trip.way is not None:
            relation = trip.carriage.relation
            self.learner.moved(Move(trip.way, relation, costs.moved_bytes, costs.descriptors, busy_s=move_s))
            if trip.decision.plan.key not in self._met:
                self._met[trip.decision.plan.key] = (trip.pre, trip.dec)
                self._build()

    def gave_up(self, trip: Trip) -> None:
        """The attempt failed."""
        self.learner.lost(trip.key)
        self._release(trip)

    def _computed(self, trip: Trip, cached_tokens: int) -> None:
        """How long its prompt took, if it shared its steps with nothing."""
        worker, job = self.workers[trip.pre], trip.prefill or trip.job
        if trip.alone and job is not None and not worker.can_colocate:
            new_tokens = max(1, job.prompt_tokens - cached_tokens)
            took_s = job.prefill_end_s - job.prefill_start_s
            self.learner.prefilled(worker, self._counted[trip.pre], new_tokens, cached_tokens, took_s)

    def polled(self, answers: list[dict[str, object] | None], taken_s: float) -> None:
        """What workers told when asked at `taken_s`; None from those that are down."""
        for place, answer in enumerate(answers):
            if taken_s <= self._lost_s[place]:
                continue
            if answer is None:
                self.down(place)
            elif not self.workers[place].healthy:
                self._returned(place)
            if answer is not None:
                self._meters[place].read({"loads": [answer]}, self._events.now_s)
        kinds = [alike(worker) for worker in self.workers]
        for place, (worker, kind) in enumerate(zip(self.workers, kinds, strict=True)):
            if answers[place] is not None and worker.healthy and taken_s > self._lost_s[place]:
                like = (meter for meter, other in zip(self._meters, kinds, strict=True) if other == kind)
                self._counted[place] = self._meters[place].among(like)
        known = zip(self.workers, self._counted, strict=True)
        speeds = self.learner.worker_speeds(known)
        for place, (answer, speed) in enumerate(zip(answers, speeds, strict=True)):
            worker = self.workers[place]
            if answer is None or not worker.healthy or taken_s <= self._lost_s[place]:
                continue
            load = with_foreign(
                load_of({"loads": [answer]}, taken_s),
                worker.role,
                self.book.at(taken_s, worker.id),
                measured_share=self._meters[place].share if worker.can_colocate else 0.0,
                own_share=self.book.prefill_share(worker.id),
            )
            self.workers[place] = dataclasses.replace(worker, speed=speed, load=load)
        self._refresh()

    def down(self, place: int) -> None:
        """A worker does not answer: what it held is gone, and what it told before is of no more use."""
        self._lost_s[place] = self._events.now_s
        if not self.workers[place].healthy:
            return
        self._forget(place)
        self.workers[place] = dataclasses.replace(self.workers[place], healthy=False)
        self._build()

    def _returned(self, place: int) -> None:
        self._forget(place)
        worker = self.workers[place]
        self._meters[place] = Speedometer(worker.speed)
        load = Load(time_s=self._events.now_s)
        self.workers[place] = dataclasses.replace(worker, healthy=True, load=load)
        self._build()

    def _forget(self, place: int) -> None:
        prefixes = self._prefixes[place]
        if prefixes is not None:
            prefixes.clear()
        self._met = {key: ends for key, ends in self._met.items() if place not in ends}

    def place(self, worker_id: str) -> int:
        return self._place[worker_id]

    def _release(self, trip: Trip) -> None:
        self.book.end(trip.key)
        self.learner.arrived(trip.key)

    def _link(self, src: Worker, dst: Worker, transport: str) -> Link:
        return Link.of(self._path, src.host, dst.host, transport, units=min(src.layout.tp, dst.layout.tp))

    def _build(self) -> None:
        self.table = Candidates.build(self.workers, self._link, met=frozenset(self._met))
        self._order = [worker.id for worker in self.table.workers]
        self._row_of = {key: row for row, key in enumerate(self.table.keys)}
        self._path_keys = [_key(path_of(link)) for link in self.table.links]
        self._refresh()

    def _refresh(self) -> None:
        self.table = dataclasses.replace(
            self.table, workers=tuple(self.workers[self._place[name]] for name in self._order)
        )
        self.state = State.of(self.table)
        self._foreign_share = self.state.prefill_share.copy()

    def _own_share(self, name: str) -> float:
        return self.book.prefill_share(name) if self.workers[self._place[name]].can_colocate else 0.0


def _key(path: Path) -> str:
    return f"{path.src_host}>{path.dst_host}@{path.transport}"
