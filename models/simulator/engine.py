"""One simulated SGLang worker: continuous batching, chunked prefill, KV room, prefix cache."""

import math
import random
from typing import Any

from kvferry.models.simulator.admission import Admission
from kvferry.models.simulator.batch import Batch, steps_s, steps_within
from kvferry.models.simulator.counters import Counters
from kvferry.models.simulator.events import Event, Events
from kvferry.models.simulator.hooks import Hooks
from kvferry.models.simulator.job import Job
from kvferry.models.simulator.kv_room import KVRoom
from kvferry.models.simulator.spec import EngineSpec
from kvferry.models.simulator.steps import StepTimes
from kvferry.policy.worker import Role


class Engine:
    """Steps follow each other while there is work; a step computes up to `chunk_tokens` prompt tokens and
    one token for every running decode (`StepTimes`). Steps in which only decodes run are taken together
    up to the next end, and cut at the next step boundary when something arrives.

    When decodes outgrow the KV room, the one that joined last is retracted: computed again later where
    the worker prefills, kept aside (in host memory, as SGLang does) where it does not.
    """

    def __init__(
        self,
        spec: EngineSpec,
        steps: StepTimes,
        events: Events,
        hooks: Hooks,
        rng: random.Random,
        *,
        speed: float = 1.0,
        step_sigma: float = 0.0,
        block_tokens: int = 512,
    ) -> None:
        self.spec = spec
        self.events = events
        self.alive = True
        self.retractions = 0
        self.steps_done = 0
        self._steps = steps
        self._hooks = hooks
        self._rng = rng
        self._pace = 1.0 / speed
        self._sigma = step_sigma
        self._block_tokens = block_tokens
        self._empty()

    def _empty(self) -> None:
        spec = self.spec
        self.counters = Counters()
        self.batch = Batch()
        self.kv = KVRoom(spec.max_total_tokens, self._block_tokens, spec.prefix_cache)
        self.held: set[Job] = set()  # prefill role: computed prompts whose KV has not left
        self.admission = Admission(spec, self.kv, self.batch)
        self._chunks: list[tuple[Job, int]] = []
        self._event: Event | None = None
        self._turning = False  # at a step boundary: hooks that ask for more are heard at its end
        self._asked = False
        self._jump: tuple[float, float, float, int] | None = None  # start, first step, growth, steps

    def submit(self, job: Job) -> None:
        """Queue a prompt for prefill here."""
        job.queued_s = self.events.now_s
        self.admission.waiting.append(job)
        self._poke()

    def expect(self, job: Job) -> None:
        """Decode role: set KV room aside for a request whose KV will come, as soon as there is some."""
        job.queued_s = self.events.now_s
        self.admission.prealloc.append(job)
        self._poke()

    def arrive(self, job: Job) -> None:
        """Decode role: the KV of an expected request is here."""
        if job in self.admission.expected:
            self.admission.arrived.append(job)
            self._poke()

    def release(self, job: Job) -> None:
        """Prefill role: the KV of a computed prompt has left."""
        if job in self.held:
            self.held.remove(job)
            self.admission.settle(job, joined=False)
            self._poke()

    def abort(self, job: Job) -> None:
        """Forget a request that has not ended, wherever it stands; no hook is called for it any more."""
        if not job.gone:
            job.gone = True
            self.held.discard(job)
            self.admission.gone.append(job)
            self._poke()

    def die(self) -> None:
        """Everything here is lost, and nothing more happens until `revive`."""
        self.alive = False
        for job in (
            *self.admission.jobs(),
            *self.batch.jobs(),
            *self.held,
            *(job for job, _ in self._chunks),
        ):
            job.gone = True
        if self._event is not None:
            self._event.cancel()

    def revive(self) -> None:
        """Start again, empty; the counters begin at zero, as those of a new process do."""
        self._empty()
        self.alive = True

    @property
    def computing_tokens(self) -> int:
        """Prompt tokens in the step that runs now."""
        return sum(count for _, count in self._chunks)

    def loads(self) -> dict[str, Any]:
        """A rank's entry in GET /v1/loads, as of now."""
        used = self.kv.used_tokens + self.batch.size * self._steps_begun()
        return {
            "num_running_reqs": self.batch.size + len(self.admission.arrived),
            "num_total_tokens": used,
            "num_used_tokens": used,
            "max_total_num_tokens": self.spec.max_total_tokens,
            "max_running_requests": self.spec.max_running_requests,
            **self.admission.told(held=len(self.held)),
            **self.counters.told(),
        }

    def _poke(self) -> None:
        """Something has changed: begin a step if none runs, or let a jump end with the step in progress."""
        if not self.alive:
            return
        if self._turning:
            self._asked = True
        elif self._event is None:
            self._next()
        elif self._jump is not None:
            start_s, first_s, growth_s, count = self._jump
            begun = self._steps_begun()
            if begun < count:
                self._event.cancel()
                self._jump = (start_s, first_s, growth_s, begun)
                end_s = max(self.events.now_s, start_s + steps_s(begun, first_s, growth_s))
                self._event = self.events.at(end_s, self._jumped)

    def _steps_begun(self) -> int:
        if self._jump is None:
            return 0
        start_s, first_s, growth_s, count = self._jump
        return min(count, steps_within(self.events.now_s - start_s, first_s, growth_s))

    def _next(self) -> None:
        """At a step boundary: let in what has come, and begin the next step."""
        self._turning, self._asked = True, False
        desk, batch = self.admission, self.batch
        failed: list[Job] = []
        if desk.gone:
            desk.bury()
        if desk.aside:
            for job in desk.resume():
                self._join(job)
        if desk.prealloc:
            for job in desk.grant(failed):
                if not job.gone:
                    self._hooks.granted(self, job)
        if desk.arrived:
            for job in desk.take_in():
                self.kv.keep(job)
                job.generated = 1
                self._first(job)
                self._join(job)
        short = batch.size > self.kv.room_tokens
        if short:
            self._retract()
        chunks = desk.pick(failed) if desk.waiting and not (short and batch.size) else []
        pace = self._pace
        if self._sigma:
            pace *= math.exp(self._sigma * self._rng.gauss(0.0, 1.0))
        if chunks:
            self._begin_mixed(chunks, pace)
        elif batch.size:
            steps = self._steps
            first_s = pace * (steps.decode_s(batch.size) + steps.context_s * batch.context_tokens)
            growth_s = pace * steps.context_s * batch.size
            count = min(batch.until_end, self.kv.room_tokens // batch.size)
            now_s = self.events.now_s
            self._jump = (now_s, first_s, growth_s, count)
            self._event = self.events.at(now_s + steps_s(count, first_s, growth_s), self._jumped)
        else:
            self._event = None
        for job in failed:
            self._fail(job)
        self._turning = False
        if self._asked:
            self._poke()

    def _begin_mixed(self, chunks: list[tuple[Job, int]], pace: float) -> None:
        steps, batch = self._steps, self.batch
        decodes = batch.size if self.spec.mixed_chunk else 0
        tokens, work = decodes, 0.0
        for job, count in chunks:
            if math.isnan(job.prefill_start_s):
                job.prefill_start_s = self.events.now_s
            tokens += count
            work += count * (job.computed_tokens + 0.5 * count)
        step_s = steps.tokens_s(tokens) + steps.attention_s * work
        if decodes:
            step_s += steps.context_s * batch.context_tokens + steps.mixed_s
        self._chunks = chunks
        self._event = self.events.at(self.events.now_s + pace * step_s, self._mixed, pace * step_s)

    def _jumped(self) -> None:
        assert self._jump is not None
        _, first_s, growth_s, count = self._jump
        self._jump = None
        self.steps_done += count
        self.counters.decoded(self.batch.size, count, steps_s(count, first_s, growth_s))
        self._decoded(count)
        self._next()

    def _mixed(self, took_s: float) -> None:
        self.steps_done += 1
        chunks, self._chunks = self._chunks, []
        self.counters.prefilled(sum(count for _, count in chunks), took_s)
        if self.spec.mixed_chunk:
            self._decoded(1)
        prefill_only = self.spec.role is Role.PREFILL
        for job, count in chunks:
            first = job.computed_tokens == job.cached_tokens
            job.computed_tokens += count
            if job.gone:
                continue
            if prefill_only:
                self._hooks.chunk(self, job, count + job.cached_tokens if first else count)
            if job.to_compute <= 0 and not job.gone:
                self._computed(job)
        self._next()

    def _decoded(self, count: int) -> None:
        batch = self.batch
        self.kv.take(batch.size * count)
        batch.step(count)
        for job in batch.ended():
            self.admission.settle(job)
            self._finish(job)

    def _computed(self, job: Job) -> None:
        self.kv.keep(job)
        job.prefill_end_s = self.events.now_s
        if self.spec.role is Role.PREFILL:
            self.held.add(job)
            self._hooks.finished(self, job)
            return
        job.generated += 1
        if math.isnan(job.first_token_s):
            self._first(job)
        self._join(job)

    def _first(self, job: Job) -> None:
        job.first_token_s = self.events.now_s
        if not job.gone:
            self._hooks.first_token(self, job)

    def _join(self, job: Job) -> None:
        if job.generated >= job.output_tokens:
            self.admission.settle(job, joined=False)
            self._asked = True  # others may have waited for its room
            self._finish(job)
            return
        job.private_tokens -= job.generated
        self.batch.join(job)

    def _finish(self, job: Job) -> None:
        job.end_s = self.events.now_s
        if not job.gone:
            self._hooks.finished(self, job)

    def _retract(self) -> None:
        while self.batch.size > self.kv.room_tokens:
            job = self.batch.latest()
            self.batch.leave(job)
            self.admission.settle(job)
            if not self.batch.size and not self.kv.used_tokens:
                self._asked = True
                self._fail(job)
                continue
            job.retractions += 1
            self.retractions += 1
            self.admission.put_back(job)

    def _fail(self, job: Job) -> None:
        job.end_s = self.events.now_s
        if not job.gone:
            self._hooks.failed(self, job)
