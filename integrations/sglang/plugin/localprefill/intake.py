"""How a local request comes in: past SGLang's check for a room, and into a queue of its own."""

from collections.abc import Callable
from typing import Any

from kvferry.integrations.sglang.plugin.localprefill.abort import BAD_REQUEST, UNAVAILABLE, drop, reason
from kvferry.integrations.sglang.plugin.localprefill.marker import asks_local, is_local
from kvferry.integrations.sglang.plugin.localprefill.refuse import unservable
from kvferry.integrations.sglang.plugin.localprefill.state import State
from kvferry.integrations.sglang.plugin.probe import resolve

# Only between the check and the Req: scheduler.waiting_queue would mean "its KV is here" on a decode worker.
ROOM = -1


class Intake:
    """Hooks on the scheduler's intake."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._handled: Any = None  # the marked request that SGLang is handling: its room is ours

    def handle(
        self, original: Callable[..., Any], scheduler: Any, received: Any, *args: Any, **more: Any
    ) -> Any:
        """Around _handle_generate_request."""
        if not (self.state.runs(scheduler) and asks_local(received)):
            return original(scheduler, received, *args, **more)
        refused = unservable(received)
        if refused:
            told = resolve("sglang.srt.managers.io_struct.AbortReq")(
                rid=received.rid, finished_reason=reason(refused, BAD_REQUEST)
            )
            return scheduler.send_abort_output(told, received)
        received.bootstrap_room, self._handled = ROOM, received
        try:
            return original(scheduler, received, *args, **more)
        finally:
            self._handled = None

    def create(
        self, original: Callable[..., Any], scheduler: Any, received: Any, *args: Any, **more: Any
    ) -> Any:
        """Around _create_generation_req: the room was only for the check. A client may send the same one
        itself, unmarked and so unchecked: that is a room like any other."""
        req = original(scheduler, received, *args, **more)
        if self.state.runs(scheduler) and received is self._handled:
            req.kvferry_local, req.bootstrap_room = True, None
            req.time_stats.disagg_mode = resolve("sglang.srt.disaggregation.utils.DisaggregationMode").NULL
        return req

    def add(self, original: Callable[..., Any], scheduler: Any, req: Any, is_retracted: bool = False) -> Any:
        """Around _add_request_to_queue. What was retracted with a backup of its KV resumes as in stock."""
        if not (self.state.runs(scheduler) and is_local(req)) or (is_retracted and req.output_ids):
            return original(scheduler, req, is_retracted)
        if is_retracted:
            return self._again(req)
        if resolve("sglang.srt.disaggregation.utils.is_unadmitted_reject")(req):
            return scheduler.retire_unadmitted_request(req)
        if not scheduler._set_or_validate_priority(req):
            return scheduler._release_aborted_request(req)
        if len(self.state.queue) >= self.state.settings.max_queue:
            return drop(self.state, req, reason("the queue for local prefill is full", UNAVAILABLE))
        self.state.accepted += 1
        self.state.queue.append(req)
        req.time_stats.set_wait_queue_entry_time()
        req.arrival_processed_tokens = scheduler.processed_tokens_counter
        return None

    def hold(self, original: Callable[..., Any], prealloc: Any, req: Any) -> Any:
        """Around DecodePreallocQueue.hold_rebootstrap (pause with retraction): no prefill worker has ever
        seen this request, so it is computed again here."""
        if not (self.state.runs(prealloc.scheduler) and is_local(req)):
            return original(prealloc, req)
        token = getattr(req, "pd_rebootstrap_forced_output_id", None)
        if token is not None:
            req.output_ids.append(token)
            req.pd_rebootstrap_forced_output_id = None
        req.pd_rebootstrap_in_progress = False
        self.state.queue.append(req)
        return None

    def _again(self, req: Any) -> None:
        # The overlapped loop merges a prefill batch before its result is there. Retracted right then, a
        # request has no token yet, and SGLang's way to resume needs one: it is prefilled again.
        backup = resolve("sglang.srt.runtime_context.get_disagg")().disaggregation_decode_retraction_backup
        if backup != "none":
            resolve("sglang.srt.mem_cache.common.discard_kv_cache_backup")(
                req, self.state.scheduler.tree_cache, backup
            )
        self.state.queue.insert(0, req)
        req.time_stats.set_wait_queue_entry_time()
