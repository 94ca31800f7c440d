"""The router's core: from a parsed body to a worker's answer, over as many plans as it takes."""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kvferry.integrations.log.convert import joined
from kvferry.integrations.log.picture import Pictures
from kvferry.integrations.log.record import DecisionRecord, Outcome
from kvferry.integrations.redis.sink import Sink
from kvferry.integrations.registry.arms import Arms
from kvferry.integrations.registry.health_watch import Learning
from kvferry.integrations.registry.running import Models
from kvferry.integrations.registry.shadow import Shadows
from kvferry.integrations.sglang.body import Body, Endpoint
from kvferry.integrations.sglang.errors import ApiError, BadRequest, NoWorker, Upstream
from kvferry.integrations.sglang.fleet import Fleet
from kvferry.integrations.sglang.join import Join
from kvferry.integrations.sglang.join_trip import Sent
from kvferry.integrations.sglang.kvevents import comparable
from kvferry.integrations.sglang.leg import Answer, Call, LegFailed
from kvferry.integrations.sglang.legs import Legs
from kvferry.integrations.sglang.metrics import Metrics
from kvferry.integrations.sglang.passage import Passage
from kvferry.integrations.sglang.passage_outcome import ends
from kvferry.integrations.sglang.plugin.wire import LOCAL_MARK
from kvferry.integrations.sglang.poller import Poller
from kvferry.integrations.sglang.recent import Recent
from kvferry.integrations.sglang.settings import Settings
from kvferry.integrations.sglang.tenant import family_of, tenant_of
from kvferry.models.book import Book
from kvferry.models.output_tokens import CAP_TOKENS
from kvferry.models.prefix import BLOCK_BYTES, BLOCK_TOKENS, block_hashes
from kvferry.models.prefix_keys import PrefixKeys
from kvferry.models.tokens import TokenRatio
from kvferry.policy.base import Policy
from kvferry.policy.decision import Decision, NoPlanError
from kvferry.policy.plan import Split
from kvferry.policy.request import SLO, Request
from kvferry.policy.worker import Role

ROOM_BITS = 62
TELL_S = 2.0
# A request that may itself be what kills workers is not carried to a third one.
MAX_DEATHS = 2


@dataclass(slots=True, eq=False)
class Ferry:
    """Everything a request meets on its way. `clock` is monotonic; `rng` draws ids, rooms and seeds."""

    settings: Settings
    name: str
    policy: Policy
    fleet: Fleet
    book: Book
    legs: Legs
    poller: Poller
    sink: Sink
    clock: Callable[[], float]
    rng: random.Random
    ratio: TokenRatio = field(default_factory=TokenRatio)
    metrics: Metrics = field(default_factory=Metrics)
    recent: Recent = field(default_factory=Recent)
    arms: Arms = field(default_factory=Arms)
    models: Models | None = None
    stopping: bool = False
    serving: "set[asyncio.Task[Any]]" = field(default_factory=set)
    join: Join = field(init=False)
    shadows: Shadows = field(init=False)
    pictures: Pictures = field(init=False)
    learning: Learning = field(init=False)

    def __post_init__(self) -> None:
        self.join = Join(self.fleet, self.write, self.metrics.met)
        self.shadows = Shadows(self.policy, self.arms, self.sink)
        self.pictures = Pictures(self.sink.table)
        lessons = self.fleet.lessons
        self.learning = Learning(
            self.name,
            self.policy.name,
            version=lambda: self.arms.running.live.version,
            evidence=lambda: {**lessons.learner.counts(), "output_tokens": lessons.lengths.revision},
        )

    def write(self, record: DecisionRecord, outcome: Outcome) -> None:
        """What came of a request, once and for all: to the streams, the log file and those who watch."""
        self.fleet.lessons.told(record, outcome)
        self.arms.told(record, outcome)
        self.sink.outcome(record.id, outcome)
        done = joined(record, outcome)
        self.sink.joined(done)
        self.learning.ended(done)
        self.recent.add(done)

    def passage(self, body: Body, started_s: float, headers: Mapping[str, str] | None = None) -> Passage:
        """Everything the policy needs to know of this request. ApiError when it cannot be served."""
        model = self._model(body.model)
        self._check_ids(body, self.fleet.vocab_tokens(model))
        prompt_tokens = body.prompt_units
        if not body.exact:
            prompt_tokens = self.ratio.tokens(model, body.endpoint.value, body.prompt_units)
        hashes = block_hashes(body.prompts[0]) if len(body.prompts) == 1 else ()
        limit = int(CAP_TOKENS) if body.max_new_tokens is None else body.max_new_tokens
        key = self.settings.api_key.get_secret_value().encode() if self.settings.api_key else b""
        tenant = tenant_of(headers or {}, self.settings.tenant_header, key)
        family = family_of(hashes, key)
        expected, at_most = self.fleet.lessons.lengths.expect(model, limit, tenant, family)
        if body.ignore_eos:
            expected = at_most = max(1.0, float(limit))
        request = Request(
            id=f"{self.rng.getrandbits(96):024x}",
            model=model,
            prompt_tokens=max(1, prompt_tokens) * body.samples,
            max_new_tokens=limit,
            expected_output_tokens=expected,
            expected_output_tokens_p90=at_most,
            sequences=body.sequences,
            slo=SLO(self.settings.slo_ttft_s, self.settings.slo_itl_s),
            priority=body.priority,
            block_hashes=hashes,
            held_tokens=self._held(model, hashes, body, prompt_tokens),
            seed=self.rng.getrandbits(63),
            tenant=tenant,
            family=family,
        )
        return Passage(self, body, request, hashes, started_s)

    async def answer(self, passage: Passage, headers: Mapping[str, str]) -> tuple[Answer, Call]:
        """The first bytes of an answer, and the leg they come from.

        A plan that is refused, fails, or passes its deadline before its first byte is given up and the
        request decided again: colocated where that is possible, else on another pair. ApiError when no
        plan is left; a worker's own error (a 4xx) is the client's to see and is raised as LegFailed.
        """
        excluded: set[str] = set()
        if passage.body.samples > 1 and passage.body.endpoint is not Endpoint.GENERATE:
            excluded |= self._split_keys(passage.request.model)
        failure: LegFailed | None = None
        deaths = 0
        while True:
            try:
                decision = self._decide(passage, excluded)
            except NoPlanError as error:
                raise self._stranded(passage, failure, error) from error
            try:
                return await self._try(passage, headers, self._deadline_s(passage, excluded))
            except LegFailed as failed:
                failure = failed
                passage.error = str(failed)
                self._blame(passage, failed)
                deaths += failed.worker_down and not failed.refused
                last = passage.attempt + 1 >= self.settings.max_attempts
                if not failed.retry or last or deaths >= MAX_DEATHS:
                    raise
                passage.give_up()
                excluded.add(decision.plan.key)
                if failed.worker_down:
                    excluded.add(failed.worker)

    async def stop(self, grace_s: float) -> None:
        """Take no more requests, let those in flight end, and tell the rest that they will not."""
        self.stopping = True
        await self._drained(grace_s)
        for task in self.serving:
            task.cancel()
        await self._drained(TELL_S)

    async def _drained(self, timeout_s: float) -> None:
        # a task may serve its connection's next request: that it has ended this one shows in the set alone
        end_s = self.clock() + timeout_s
        while self.serving and self.clock() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def per_byte(self, model: str, body: Body) -> float:
        return self.ratio.per_byte(model, body.endpoint.value)

    def _decide(self, passage: Passage, excluded: set[str]) -> Decision:
        """A rescue goes to one worker where that is possible, else to another pair."""
        if passage.attempt:
            with suppress(NoPlanError):
                return passage.decide(excluded | self._split_keys(passage.request.model))
        return passage.decide(excluded)

    async def _try(
        self, passage: Passage, headers: Mapping[str, str], deadline_s: float
    ) -> tuple[Answer, Call]:
        decision, body = passage.decision, passage.body
        assert decision is not None
        plan = decision.plan
        pre, dec = ends(plan)
        # a worker gives the samples of one prompt ids of its own, by which nobody can abort them
        body = body.expanded()
        # SGLang aborts every request whose id begins with the one it is told: a new attempt differs there
        again = f"{passage.attempt}-" if passage.attempt else ""
        rids = told = [again + rid for rid in body.rids(passage.request.id)]
        fields: dict[str, object] = {}
        if again or body.rid is None:
            fields["rid"] = rids if body.batched else rids[0]
        if body.rid is not None:
            rids = []  # a worker would also abort strangers whose ids begin like the client's
        source = self.fleet.members[pre].worker
        if not isinstance(plan, Split):
            if source.role is Role.DECODE:
                # whatever the client says of a bootstrap is not for this worker
                fields |= {LOCAL_MARK: True, "bootstrap_host": LOCAL_MARK, "bootstrap_room": None}
            passage.sent(Sent(pre, dec, rids=tuple(told) if body.samples == 1 else ()))
            call = Call(dec, body.endpoint.value, body.with_fields(fields), rids, headers, body.stream)
            return await self.legs.colocated(call, deadline_s), call
        fields["bootstrap_host"] = source.bootstrap_host
        fields["bootstrap_port"] = source.bootstrap_port_of(plan.transport)
        fields["bootstrap_room"] = room = self.rng.getrandbits(ROOM_BITS)
        # the workers number the sequences of a batch from there
        passage.sent(Sent(pre, dec, rooms=tuple(range(room, room + body.sequences))))
        sent = body.with_fields(fields)
        first, second = (
            Call(worker, body.endpoint.value, sent, rids, headers, body.stream) for worker in (pre, dec)
        )
        return await self.legs.split(first, second, deadline_s, passage.prefilled), second

    def _deadline_s(self, passage: Passage, excluded: set[str]) -> float:
        """Until when a first byte must be there; a plan without an alternative has all the time there is."""
        decision = passage.decision
        assert decision is not None
        timeout_s = self.settings.request_timeout_secs
        others = bool(decision.alternatives)
        if passage.attempt:  # pairs were left out of this decision
            others = others or bool(self._split_keys(passage.request.model) - excluded)
        if not others or passage.attempt + 1 >= self.settings.max_attempts:
            return timeout_s
        deadline_s = decision.deadline_s
        if not passage.body.stream:  # its first byte comes with its last token
            deadline_s += 4.0 * decision.costs.itl_s.p90 * passage.request.expected_output_tokens_p90
        return min(timeout_s, deadline_s)

    def _blame(self, passage: Passage, failed: LegFailed) -> None:
        assert passage.decision is not None
        if failed.refused:
            self.poller.suspect(failed.worker, failed.message)
        elif failed.elsewhere:
            self.poller.ask_features(failed.worker)
        elif failed.worker_down:  # one lost connection: others may be well, so the worker is asked first
            self.poller.ask(failed.worker)
        elif failed.path:
            self.fleet.breakers.failed(passage.decision.plan.key, failed.message)
            for worker in ends(passage.decision.plan):
                self.poller.ask(worker)

    def _stranded(
        self, passage: Passage, failure: LegFailed | None, error: NoPlanError
    ) -> ApiError | LegFailed:
        if failure is not None and (failure.body or failure.status == 504):
            return failure  # the worker's own answer, such as a 429 with its Retry-After
        if failure is not None:
            return Upstream(f"{failure}; no other plan is left: {error}")
        if passage.body.samples > 1 and passage.body.endpoint is not Endpoint.GENERATE:
            model, members = passage.request.model, self.fleet.members.values()
            if not any(one.worker.can_colocate and one.worker.model == model for one in members):
                several = f"n is {passage.body.samples}: several samples need a colocated worker"
                return BadRequest(f"{several}, and none is there", param="n")
        return NoWorker(f"{error}")

    def _split_keys(self, model: str) -> set[str]:
        table = self.fleet.cluster(model).candidates
        return {key for key, split in zip(table.keys, table.split, strict=True) if split}

    def _model(self, name: str | None) -> str:
        known = self.fleet.models()
        if not known:
            raise NoWorker("no worker is known yet: none of the given URLs has answered")
        if name in known:
            return str(name)
        if name in (None, "", "default"):
            if len(known) == 1:
                return known[0]
            raise BadRequest(f"model is missing: this cluster serves {', '.join(known)}", param="model")
        raise ApiError(
            f"model {name!r} does not exist: this cluster serves {', '.join(known)}",
            status=404,
            kind="invalid_request_error",
            param="model",
            code="model_not_found",
        )

    @staticmethod
    def _check_ids(body: Body, vocab_tokens: int) -> None:
        """An id that the model does not know would end SGLang's scheduler, and all requests with it."""
        largest = max((max(prompt) for prompt in body.prompts if prompt), default=0) if body.exact else 0
        if 0 < vocab_tokens <= largest:
            raise BadRequest(f"token id {largest} is beyond the model's vocabulary of {vocab_tokens}")

    def _held(self, model: str, hashes: tuple[int, ...], body: Body, prompt_tokens: int) -> dict[str, int]:
        keys = PrefixKeys(body.prompts[0], hashes) if comparable(body) else None
        if not hashes and keys is None:
            return {}
        per_block = float(BLOCK_TOKENS) if body.exact else BLOCK_BYTES * self.per_byte(model, body)
        held = {}
        for worker, member in self.fleet.members.items():
            if member.caches_prefixes and member.worker.model == model:
                tokens = member.held(hashes, per_block, keys)
                if tokens:
                    held[worker] = min(prompt_tokens, tokens)
        return held
