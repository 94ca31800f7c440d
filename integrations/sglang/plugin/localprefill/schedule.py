"""The scheduler's step: at times a chunk of local prefill instead of a decode step."""

import logging
import time
from collections.abc import Callable
from typing import Any

from kvferry.integrations.sglang.plugin.localprefill.abort import UNAVAILABLE, drop, reason
from kvferry.integrations.sglang.plugin.localprefill.admission import Admission
from kvferry.integrations.sglang.plugin.localprefill.merge import settled
from kvferry.integrations.sglang.plugin.localprefill.state import AT_ONCE, State
from kvferry.integrations.sglang.plugin.probe import resolve

log = logging.getLogger("kvferry.plugin")

MIN_DECODE_STEPS = 1  # between two chunks, while there is anything to decode


class Schedule:
    """Around get_next_disagg_decode_batch_to_run. Without local work it only looks at the clock."""

    def __init__(self, state: State, admission: Admission) -> None:
        self.state = state
        self.admission = admission

    def next_batch(self, original: Callable[..., Any], scheduler: Any, running_batch: Any) -> Any:
        """SGLang's NextBatchPlan. When our part of it fails, the step is still taken, with every request
        that was already merged, before the failure goes on."""
        if not self.state.runs(scheduler):
            return original(scheduler, running_batch=running_batch)
        if not self._work():
            self.state.decode_steps = AT_ONCE
            plan = original(scheduler, running_batch=running_batch)
            self._launched(plan)
            return plan
        running = running_batch
        try:
            scheduler.running_batch = running = settled(scheduler, running_batch)
            plan = self._prefill(running) if self._due(running) else None
        except Exception:
            self._decode(original, running)
            raise
        if plan is None:
            plan = self._decode(original, running)
            self._launched(plan)
        return plan

    def result(self, _: None, scheduler: Any, batch: Any, *args: Any, **more: Any) -> None:
        """After process_batch_result: how long that batch took."""
        if self.state.runs(scheduler):
            self.state.observe(prefill=batch.forward_mode.is_extend())

    def _work(self) -> bool:
        scheduler, last = self.state.scheduler, self.state.scheduler.last_batch
        return bool(
            self.state.queue
            or scheduler.chunked_req is not None
            or scheduler._pending_chunked_abort_req is not None
            or (last and last.forward_mode.is_extend())
        )

    def _due(self, running: Any) -> bool:
        nothing_to_decode = running.is_empty() and not self.state.scheduler.waiting_queue
        return nothing_to_decode or self.state.decode_steps >= MIN_DECODE_STEPS

    def _prefill(self, running: Any) -> Any:
        """The plan of the next chunk, or None when there is nothing to prefill, no memory, or no turn."""
        state, scheduler = self.state, self.state.scheduler
        chunk_tokens = state.chunk.tokens(len(running.reqs))
        split_waits = self.admission.split_waits(running)
        candidates: list[Any] = []
        if scheduler.chunked_req is not None:  # one prompt at a time: finish it first
            go = self.admission.chunk_fits(chunk_tokens)
        else:
            if state.share.may_admit("local", split_waits):
                candidates = self.admission.local(running)
            go = bool(candidates)
        if not go or state.closed:
            state.deferred += bool(state.queue) or scheduler.chunked_req is not None
            return None
        decodes = len(running.reqs)
        plan, admitted = self._choose(running, candidates, chunk_tokens)
        if plan.batch_to_run is None:
            return None
        state.decode_steps = 0
        try:
            self.admission.admitted(admitted, split_waits)
            resolve("sglang.srt.observability.req_time_stats.set_schedule_time_batch")(plan.batch_to_run)
            tokens = max(1, plan.batch_to_run.extend_num_tokens or 0)
            state.meter.launched(time.monotonic(), tokens, decodes)
        except Exception:
            log.exception("local prefill: a chunk was not accounted for")  # it has its memory: it must run
        return plan

    def _choose(self, running: Any, candidates: list[Any], chunk_tokens: int) -> tuple[Any, list[Any]]:
        """SGLang's own prefill policy on our candidates, as if they were its waiting queue."""
        state, scheduler = self.state, self.state.scheduler
        waiting, size = scheduler.waiting_queue, scheduler.chunked_prefill_size
        scheduler.waiting_queue, scheduler.chunked_prefill_size = list(candidates), chunk_tokens
        state.planning = True
        left: list[Any] = []
        try:
            plan = scheduler.get_new_batch_prefill(running)
            left = scheduler.waiting_queue
        except Exception:
            self._give_up(candidates)
            raise
        finally:
            scheduler.waiting_queue, scheduler.chunked_prefill_size = waiting, size
            state.planning = False
            gone = {id(req) for req in candidates} - {id(req) for req in left}
            state.queue[:] = [req for req in state.queue if id(req) not in gone]
            if state.closed:
                while state.queue:
                    drop(state, state.queue.pop(), reason("local prefill was turned off", UNAVAILABLE))
        return plan, [req for req in candidates if id(req) in gone]

    def _give_up(self, candidates: list[Any]) -> None:
        # SGLang failed while it built their batch: how far it came is not known, so none is tried again
        for req in candidates:
            if req.kv.holds_kv:
                resolve("sglang.srt.mem_cache.common.release_kv_cache")(
                    req, self.state.scheduler.tree_cache, checkpoint=False
                )
            if self.state.scheduler.chunked_req is req:
                self.state.scheduler.chunked_req = None
            drop(self.state, req, reason("local prefill failed", UNAVAILABLE))

    def _decode(self, original: Callable[..., Any], running: Any) -> Any:
        """The stock step: split requests whose KV is here join, and all decode. It knows neither of the
        prompt that is being prefilled, which needs a place in the batch, nor of whose turn it is."""
        state, scheduler = self.state, self.state.scheduler
        chunked = scheduler.chunked_req
        held = int(chunked is not None or self._holds_place(running))
        scheduler.chunked_req = None
        scheduler.max_running_requests -= held
        try:
            plan = original(scheduler, running_batch=running)
        finally:
            scheduler.max_running_requests += held
            scheduler.chunked_req = chunked
        state.decode_steps += plan.batch_to_run is not None
        if plan.batch_to_run is None:
            state.decode_steps = max(state.decode_steps, MIN_DECODE_STEPS)
        return plan

    def _holds_place(self, running: Any) -> bool:
        if not (self.state.queue and self.state.share.turn == "local" and self.state.scheduler.waiting_queue):
            return False
        return bool(self.admission.local(running))

    def _launched(self, plan: Any) -> None:
        batch = plan.batch_to_run
        if batch is not None:
            self.state.meter.launched(time.monotonic(), 0, len(batch.reqs))
