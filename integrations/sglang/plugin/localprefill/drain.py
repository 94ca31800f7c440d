"""What happens to local requests when the feature is turned off while the worker serves."""

import logging
from typing import Any

from kvferry.integrations.sglang.plugin.localprefill.abort import UNAVAILABLE, drop, reason
from kvferry.integrations.sglang.plugin.localprefill.merge import joined
from kvferry.integrations.sglang.plugin.localprefill.state import State
from kvferry.integrations.sglang.plugin.probe import resolve

log = logging.getLogger("kvferry.plugin")

STEP = "get_next_disagg_decode_batch_to_run"
TOLD = "local prefill was turned off"  # why is in the log and in /server_info


def close(state: State) -> None:
    """Tell those that wait that they will not be served, and see those that hold KV through.

    Those in the middle of being chosen are seen to by whoever is choosing.
    """
    scheduler, state.closed = state.scheduler, True
    if scheduler is None:
        return
    if not state.planning:
        while state.queue:
            drop(state, state.queue.pop(0), reason(TOLD, UNAVAILABLE))
    setattr(scheduler, STEP, Drain(scheduler))


class Drain:
    """In front of the scheduler's step until no local prefill is left: hooks no longer act by then.

    Prefilled requests join the running batch and finish; the prompt that is only partly prefilled is
    aborted. Then it takes itself away.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        last = scheduler.last_batch
        self._lost = last if last and last.forward_mode.is_extend() else None

    def __call__(self, running_batch: Any) -> Any:
        scheduler, last = self.scheduler, self.scheduler.last_batch
        prefill = last if last and last.forward_mode.is_extend() else None
        try:
            self._end_chunked()
            for batch in (prefill, self._lost):  # the newer first: it knows a request's length better
                if batch is not None:
                    running_batch = joined(running_batch, batch, self._aside(batch, running_batch))
        except Exception:
            log.exception("local prefill: some of its requests are lost")
        self._lost = None
        if prefill is None and scheduler.chunked_req is None:
            delattr(scheduler, STEP)
        scheduler.running_batch = running_batch
        return getattr(type(scheduler), STEP)(scheduler, running_batch=running_batch)

    @staticmethod
    def _aside(batch: Any, running_batch: Any) -> set[Any]:
        held = {id(req) for req in running_batch.reqs}
        known = {req for req in batch.reqs if id(req) in held or not req.kv.holds_kv}
        return known | {batch.chunked_req} if batch.chunked_req is not None else known

    def _end_chunked(self) -> None:
        scheduler, req = self.scheduler, self.scheduler.chunked_req
        if req is None:
            return
        req.discard_output_reason = resolve("sglang.srt.managers.schedule_batch.FINISH_ABORT")(
            TOLD, UNAVAILABLE
        )
        scheduler._pending_chunked_abort_req = req
        if scheduler.enable_overlap:
            scheduler.device_module.synchronize()
        scheduler.process_pending_chunked_abort()
