"""How a local request ends before it runs, and that a worker with one waiting is not idle."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from kvferry.integrations.sglang.plugin.localprefill.state import State
from kvferry.integrations.sglang.plugin.probe import resolve

BAD_REQUEST = HTTPStatus.BAD_REQUEST
UNAVAILABLE = HTTPStatus.SERVICE_UNAVAILABLE


def reason(message: str, status: HTTPStatus) -> dict[str, Any]:
    """SGLang's finished_reason for a request that was not served."""
    return {"type": "abort", "status_code": status, "message": message}


def drop(state: State, req: Any, finished_reason: dict[str, Any] | None) -> None:
    """End a request that holds no KV, as SGLang ends those in its waiting queue."""
    scheduler = state.scheduler
    state.aborted += 1
    scheduler._release_aborted_request(req)
    scheduler.beam_coordinator.retire_group(req)
    scheduler.send_abort_output(
        resolve("sglang.srt.managers.scheduler._make_abort_req")(req, finished_reason=finished_reason), req
    )


class Aborts:
    """Hooks on aborts, timeouts and idleness."""

    def __init__(self, state: State) -> None:
        self.state = state

    def abort(self, scheduler: Any, asked: Any) -> None:
        """Before abort_request: those in the queue. SGLang itself finds the one being chunked and the
        running ones."""
        if not self.state.runs(scheduler):
            return
        queue = self.state.queue
        hit = [req for req in queue if asked.abort_all or req.rid.startswith(asked.rid)]
        for req in hit:
            queue.remove(req)
            drop(self.state, req, asked.finished_reason)

    def poll(self, original: Callable[..., Any], scheduler: Any) -> Any:
        """Around _poll_timeout_aborts: those in the queue wait, too."""
        if not (self.state.runs(scheduler) and self.state.queue):
            return original(scheduler)
        waiting = scheduler.waiting_queue
        scheduler.waiting_queue = waiting + self.state.queue
        try:
            return original(scheduler)
        finally:
            scheduler.waiting_queue = waiting

    def idle(
        self, idle: bool, scheduler: Any, for_health_check: bool = False, ignore_waiting: bool = False
    ) -> bool:
        """After is_fully_idle."""
        waits = self.state.runs(scheduler) and bool(self.state.queue)
        return idle and not (waits and not for_health_check and not ignore_waiting)
