"""Who is let in next on one engine: its queues, and the rule by which KV room is given out."""

from collections import deque
from typing import Any

from kvferry.models.simulator.batch import Batch
from kvferry.models.simulator.job import Job
from kvferry.models.simulator.kv_room import KVRoom
from kvferry.models.simulator.spec import EngineSpec
from kvferry.policy.worker import Role

MIN_BUDGET_TOKENS = 16


class Admission:
    """First come, first served, in four queues: prompts `waiting` for prefill, `prealloc` for KV room that
    a decode worker sets aside before the KV is sent (then `expected`, then `arrived`), and retracted
    decodes kept `aside` where they cannot be computed again.

    A request is let in when its tokens so far fit and `reserve_tokens` more for it and for each that runs
    or is expected (SGLang's rule on decode workers). What fits into no empty worker has failed.
    """

    __slots__ = ("_batch", "_kv", "_spec", "arrived", "aside", "expected", "gone", "prealloc", "waiting")

    def __init__(self, spec: EngineSpec, kv: KVRoom, batch: Batch) -> None:
        self._spec = spec
        self._kv = kv
        self._batch = batch
        self.waiting: deque[Job] = deque()
        self.prealloc: deque[Job] = deque()
        self.expected: set[Job] = set()
        self.arrived: list[Job] = []
        self.aside: deque[Job] = deque()
        self.gone: list[Job] = []

    def pick(self, failed: list[Job]) -> list[tuple[Job, int]]:
        """The prompts, and how much of each, that the next step computes."""
        budget = self._spec.chunk_tokens
        if self._spec.mixed_chunk:
            budget = max(MIN_BUDGET_TOKENS, budget - self._batch.size)
        waiting = self.waiting
        chunks: list[tuple[Job, int]] = []
        while budget > 0 and waiting:
            job = waiting[0]
            if not job.admitted and not self._let_in(job, len(chunks)):
                if self._holds_any and not self._too_large(job):
                    break
                failed.append(waiting.popleft())
                continue
            count = min(budget, job.to_compute)
            budget -= count
            chunks.append((job, count))
            if count < job.to_compute:
                break
            waiting.popleft()
        return chunks

    def grant(self, failed: list[Job]) -> list[Job]:
        """Requests for which KV room is now set aside."""
        granted: list[Job] = []
        while self.prealloc:
            job = self.prealloc[0]
            if self._let_in(job, self._half_computed):
                self.expected.add(job)
                granted.append(job)
            elif (self._holds_any or self.expected or self.aside) and not self._too_large(job):
                break
            else:
                failed.append(job)
            self.prealloc.popleft()
        return granted

    def resume(self) -> list[Job]:
        """Retracted decodes for which there is room again."""
        back: list[Job] = []
        while self.aside and self._let_in(self.aside[0], len(back) + self._half_computed, self.aside[0]):
            back.append(self.aside.popleft())
        return back

    def put_back(self, job: Job) -> None:
        """A retracted decode is the next to be let in; a prompt half computed goes on before it."""
        if not self._spec.prefills:
            self.aside.appendleft(job)
        else:
            self.waiting.insert(self._half_computed, job)

    def take_in(self) -> list[Job]:
        """Expected requests whose KV has come."""
        arrived, self.arrived = self.arrived, []
        self.expected.difference_update(arrived)
        return arrived

    def jobs(self) -> list[Job]:
        """All that wait for something."""
        return [*self.waiting, *self.prealloc, *self.expected, *self.arrived, *self.aside]

    def told(self, held: int) -> dict[str, Any]:
        """The queues, in the words of GET /v1/loads; `held` prompts wait for their KV to leave."""
        role = self._spec.role
        return {
            "num_waiting_reqs": len(self.waiting),
            "num_waiting_uncached_tokens": sum(job.to_compute for job in self.waiting),
            "disaggregation": {
                "mode": "null" if role is Role.COLOCATED else role.value,
                "prefill_bootstrap_queue_reqs": 0,
                "prefill_inflight_queue_reqs": held,
                "decode_prealloc_queue_reqs": len(self.prealloc),
                "decode_transfer_queue_reqs": len(self.expected),
                "decode_retracted_queue_reqs": len(self.aside),
            },
        }

    def bury(self) -> None:
        """Let go of aborted requests and of what they hold."""
        gone, self.gone = self.gone, []
        for job in gone:
            for queue in (self.waiting, self.prealloc, self.aside, self.arrived):
                if job in queue:
                    queue.remove(job)
            self.expected.discard(job)
            if job.finish_step >= 0:
                self._batch.leave(job)
                self.settle(job)
            elif job.admitted:
                self.settle(job, joined=False)

    def settle(self, job: Job, joined: bool = True) -> None:
        """Free all that `job` holds. What a batch grows by is taken for all at once: the part of a job
        that has joined is what it has generated since (`join` takes off what it had by then)."""
        if joined:
            job.private_tokens += job.generated
        self._kv.free(job)
        job.admitted = False

    def _too_large(self, job: Job) -> bool:
        return job.prompt_tokens + job.generated > self._kv.capacity_tokens

    @property
    def _half_computed(self) -> int:
        """Prompts that wait for their next chunk: one at most."""
        return int(bool(self.waiting) and self.waiting[0].admitted)

    @property
    def _holds_any(self) -> bool:
        return self._kv.used_tokens > 0

    def _let_in(self, job: Job, more: int = 0, resumed: Job | None = None) -> bool:
        others = self._batch.size + len(self.expected) + more
        slots = self._spec.max_running_requests - (0 if resumed else len(self.aside))
        if others >= slots:
            return False
        reserve = max(others, self._spec.reserve_tokens * (others + 1)) if self._holds_any else 0
        job.admitted = self._kv.admit(job, reserve)
        return job.admitted
