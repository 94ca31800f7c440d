"""One request on its way through the router: decided, counted while in flight, recorded at its end."""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvferry.integrations.log.convert import joined, record_of
from kvferry.integrations.log.record import DecisionRecord, Outcome, Status
from kvferry.integrations.redis.leases import LeaseEntry
from kvferry.integrations.registry.arms import Arm
from kvferry.integrations.sglang.answer import Usage
from kvferry.integrations.sglang.body import Body
from kvferry.integrations.sglang.fleet import Member, path_key
from kvferry.integrations.sglang.join_trip import Sent, Trip
from kvferry.integrations.sglang.kvevents import comparable
from kvferry.integrations.sglang.passage_outcome import door_of, ends, outcome_of
from kvferry.models.book import Entry
from kvferry.models.prefix import BLOCK_BYTES, BLOCK_TOKENS
from kvferry.models.terms.way import Way
from kvferry.policy.decision import Decision
from kvferry.policy.plan import Split
from kvferry.policy.request import Request
from kvferry.policy.worker import Role

if TYPE_CHECKING:
    from kvferry.integrations.sglang.ferry import Ferry

log = logging.getLogger("kvferry.rescue")

PRESUME_WITHIN_S = 60.0


@dataclass(slots=True, eq=False)
class Passage:
    """`decision` is the current one, `record` that of the first; `given_up` lists rescued plans. `trip` is
    what the current attempt sent to workers, once it has."""

    ferry: "Ferry"
    body: Body
    request: Request
    hashes: tuple[int, ...]
    started_s: float
    decision: Decision | None = None
    record: DecisionRecord | None = None
    given_up: list[str] = field(default_factory=list)
    attempt: int = 0
    prefilled_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    events: int = 0
    usage: Usage = field(default_factory=Usage)
    prefill_usage: Usage = field(default_factory=Usage)
    error: str | None = None
    ended: bool = False
    trip: Trip | None = None
    arm: Arm | None = None
    attempt_s: float = 0.0
    _key: str = ""

    def decide(self, excluded: Iterable[str]) -> Decision:
        """Decide (again), and count the request on the chosen workers. Raises NoPlanError."""
        ferry = self.ferry
        cluster = ferry.fleet.cluster(self.request.model, excluded)
        begun = time.perf_counter()
        arm = self.arm = self.arm or ferry.arms.draw(self.request.seed)
        decision = arm.decide(ferry.policy, self.request, cluster)
        took_s = time.perf_counter() - begun
        ferry.metrics.decide_s.observe(took_s)
        self.decision = decision
        self.attempt_s = ferry.clock() if self.given_up else self.started_s
        way = self._enter(decision)
        if self.record is None:
            self.record = record_of(
                self.request,
                decision,
                time_s=time.time(),
                router=ferry.name,
                decide_us=took_s * 1e6,
                endpoint=self.body.endpoint.value,
                stream=self.body.stream,
                on_decode=ferry.fleet.members[ends(decision.plan)[1]].worker.role is Role.DECODE,
                mode="canary" if arm.name == "canary" else "live",
                arm=arm.name,
                picture=ferry.pictures.take(self.request, cluster),
            )
            ferry.fleet.lessons.decided(self.record, way, ends_itself=not self.body.ignore_eos)
            ferry.arms.decided(self.record.id, arm)
            ferry.shadows.decided(self.record, self.request, cluster)
            ferry.learning.decided()
            ferry.sink.decision(self.record)
            ferry.recent.add(self.record)
            if decision.safe_rule:
                ferry.metrics.safe.labels(decision.reason.value).inc()
        return decision

    def sent(self, sent: Sent) -> None:
        """The current attempt goes out to its workers."""
        self.trip = self.ferry.join.sent(sent)

    def prefilled(self) -> None:
        """The prompt is computed and its KV has arrived."""
        if self.prefilled_s is None:
            self.prefilled_s = self.ferry.clock()
            self._computed()
        self.ferry.book.first_token(self._key)
        self.ferry.fleet.lessons.arrived(self._key)
        self.ferry.sink.lease_prefill_done(self._key)

    def first_byte(self) -> None:
        if self.first_s is None:
            self.first_s = self.ferry.clock()
            self.prefilled()

    def _computed(self) -> None:
        """What its workers have computed, and hold from now on."""
        assert self.decision is not None
        members, request = self.ferry.fleet.members, self.request
        pre, dec = ends(self.decision.plan)
        if pre in members:
            held = request.held_tokens.get(pre, 0)
            members[pre].meter.prefilled(max(request.prompt_tokens - held, request.sequences), held)
        for worker in dict.fromkeys((pre, dec)):
            if worker in members and members[worker].caches_prefixes:
                members[worker].prefixes.add(self.hashes)

    def give_up(self) -> None:
        """This plan failed before its first byte."""
        assert self.decision is not None
        plan = self.decision.plan.key
        took_s = self.ferry.clock() - self.attempt_s
        log.warning("%s: gave up %s after %.1f s: %s", self.request.id, plan, took_s, self.error)
        self.given_up.append(plan)
        self.ferry.metrics.rescues.labels(self.decision.mode.value).inc()
        self.ferry.fleet.lessons.lost(self._key)
        self._leave()
        if self.trip is not None:
            self.ferry.join.forget(self.trip)
            self.trip = None
        self.prefilled_s = None
        self.attempt += 1

    def end_of_answer(self, aborted: bool) -> None:
        """The worker's answer has been passed on to its end."""
        if aborted:
            self.finish("failed", "the worker aborted it")
        else:
            self.finish("ok")

    def finish(self, status: Status, error: str | None = None) -> None:
        """The request has ended: release what it held, and say what came of it. Once only."""
        self._leave()
        decision, record = self.decision, self.record
        if decision is None or record is None or self.ended:
            return
        self.ended = True
        self.ferry.shadows.ended(record.id)
        outcome = outcome_of(self, status, error or self.error, decision.plan)
        ferry = self.ferry
        if status == "rejected" and self.trip is not None:  # no scheduler has ever seen it
            ferry.join.forget(self.trip)
            self.trip = None
        if not ferry.join.ended(self.trip, record, outcome, door_of(self)):
            ferry.recent.add(joined(record, outcome), final=False)
        mode = decision.mode.value
        ferry.metrics.requests.labels(self.body.endpoint.value, mode, record.reason, status).inc()
        if status == "ok":
            self._learn(decision, outcome)

    def _enter(self, decision: Decision) -> Way | None:
        """Count it as in flight; returns the way of its KV, if that is to travel."""
        plan, request, fleet = decision.plan, self.request, self.ferry.fleet
        self._key = f"{request.id}/{self.attempt}"
        pre, dec = ends(plan)
        held = request.held_tokens.get(pre, 0)
        new = max(request.prompt_tokens - held, request.sequences)
        context = request.prompt_tokens + int(request.sequences * request.expected_output_tokens)
        path, way = "", None
        if isinstance(plan, Split):
            source = fleet.members[pre].worker
            link = fleet.link_of(source, fleet.members[dec].worker, plan.transport)
            path = path_key(link)
            chunk = source.speed.chunk_tokens if source.speed.chunk_tokens > 0 else new
            way = Way(link, self.ferry.book.moves.get(path, 0), new, chunk, plan.key not in fleet.met)
            fleet.lessons.sent(self._key, way, decision.costs)
            fleet.breakers.tried(plan.key)
        self.ferry.book.start(
            self._key,
            Entry(
                pre,
                dec,
                path,
                new,
                request.sequences,
                context,
                start_s=self.ferry.clock(),
                prefill_s=decision.costs.prefill_s.p50,
            ),
        )
        entries = [LeaseEntry(dec, 0, request.sequences, context), LeaseEntry(pre, new, 0, 0)]
        if pre == dec:
            entries = [LeaseEntry(pre, new, request.sequences, context)]
        self.ferry.sink.lease_acquire(self._key, entries)
        if pre == dec and not self.body.stream:
            # nothing shows the first token of such an answer: else its prompt would count as work ahead
            # of others until its last one
            due_s = min(decision.costs.ttft_s.p50, PRESUME_WITHIN_S)
            asyncio.get_running_loop().call_later(due_s, self._presume_prefilled, self._key)
        return way

    def _presume_prefilled(self, key: str) -> None:
        """The prompt is taken to be computed when it was predicted to be."""
        if key == self._key:
            self.ferry.book.first_token(key)
            self.ferry.sink.lease_prefill_done(key)

    def _leave(self) -> None:
        if self._key:
            self.ferry.book.end(self._key)
            self.ferry.fleet.lessons.arrived(self._key)
            self.ferry.sink.lease_release(self._key)
            self._key = ""

    def _learn(self, decision: Decision, outcome: Outcome) -> None:
        ferry, body, request = self.ferry, self.body, self.request
        if not body.exact and outcome.prompt_tokens and body.samples == 1:
            ferry.ratio.learn(request.model, body.endpoint.value, body.prompt_units, outcome.prompt_tokens)
        pre, dec = ends(decision.plan)
        member = ferry.fleet.members.get(pre)
        if member is not None and member.caches_prefixes and body.sequences == 1:
            # a decode worker repeats what the other found
            self._learn_hit(member, (self.usage if pre == dec else self.prefill_usage).cached_tokens)
        mode = decision.mode.value
        if isinstance(decision.plan, Split):
            ferry.metrics.moved_bytes.inc(decision.costs.moved_bytes)
            ferry.fleet.contacted(decision.plan.key)
            ferry.fleet.breakers.succeeded(decision.plan.key)
        if outcome.ttft_s:
            ferry.metrics.ttft_s.labels(mode).observe(outcome.ttft_s)
            if not self.given_up:
                predicted = decision.costs.ttft_s
                ferry.metrics.ttft_error.labels(mode).observe(
                    abs(predicted.p50 - outcome.ttft_s) / outcome.ttft_s
                )
                ferry.metrics.covered.labels(str(outcome.ttft_s <= predicted.p90).lower()).inc()

    def _learn_hit(self, member: Member, reported_tokens: int | None) -> None:
        expected_tokens = self.request.held_tokens.get(member.worker.id, 0)
        if reported_tokens is None:
            return
        if member.kv is not None and not member.kv.partial and comparable(self.body):
            member.kv.check(expected_tokens, reported_tokens)
            return
        per_block = float(BLOCK_TOKENS)
        if not self.body.exact:
            per_block = BLOCK_BYTES * self.ferry.per_byte(self.request.model, self.body)
        member.prefixes.correct(round(expected_tokens / per_block), round(reported_tokens / per_block))
