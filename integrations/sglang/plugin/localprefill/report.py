"""What a worker tells of its local work: in /v1/loads, in /server_info, and in the answers themselves."""

from collections.abc import Callable
from typing import Any

from kvferry.integrations.sglang.plugin.localprefill.marker import is_local
from kvferry.integrations.sglang.plugin.localprefill.state import State
from kvferry.integrations.sglang.plugin.probe import resolve
from kvferry.integrations.sglang.plugin.wire import LocalLoad


class Report:
    """Hooks on what SGLang reports, and our own words for it."""

    def __init__(self, state: State) -> None:
        self.state = state

    def load(self) -> LocalLoad:
        """Of this moment; `queue_tokens` counts what is still to be prefilled, `chunk_tokens` is the length
        of the next chunk beside running decodes."""
        state = self.state
        if state.scheduler is None:
            return LocalLoad()
        return LocalLoad(
            queue=len(state.queue),
            queue_tokens=self._queued_tokens() + self._chunked_tokens(),
            chunk_tokens=state.chunk.tokens(1),
            stalls=state.meter.stalls,
            stalled_tokens=state.meter.stalled_tokens,
            stall_s=state.meter.stall_s,
        )

    def describe(self) -> dict[str, Any]:
        """For /server_info."""
        state, load = self.state, self.load()
        return {
            "chunk_tokens": load.chunk_tokens,
            "min_chunk_tokens": state.chunk.min_tokens,
            "max_chunk_tokens": state.chunk.max_tokens,
            "itl_target_s": state.settings.itl_target_s,
            "share": state.settings.share,
            "max_queue": state.settings.max_queue,
            "queue": load.queue,
            "queue_tokens": load.queue_tokens,
            "accepted": state.accepted,
            "aborted": state.aborted,
            "deferred": state.deferred,
            "stalls": load.stalls,
            "stalled_tokens": load.stalled_tokens,
            "stall_s": load.stall_s,
            "contended_tokens": dict(state.share.contended_tokens),
        }

    def snapshot(self, snapshot: Any, _: Any) -> Any:
        """After SchedulerLoadInquirer.get_loads: the local queue waits, too, and a decode worker reports no
        tokens to be prefilled by itself."""
        if self.state.scheduler is None:
            return None
        queued = self._queued_tokens()
        snapshot.num_waiting_reqs += len(self.state.queue)
        snapshot.num_total_tokens += queued
        snapshot.num_waiting_uncached_tokens += queued + self._chunked_tokens()
        return snapshot

    def accept(self, original: Callable[..., Any], accumulator: Any, *, req: Any) -> Any:
        """Around _GenerationStreamAccumulator.accept: a decode worker sends no input log-probabilities, which
        the prefill worker has; for a local request it has them itself."""
        if not (accumulator.return_logprob and is_local(req)):
            return original(accumulator, req=req)
        mode, accumulator.disaggregation_mode = (
            accumulator.disaggregation_mode,
            resolve("sglang.srt.disaggregation.utils.DisaggregationMode").NULL,
        )
        try:
            return original(accumulator, req=req)
        finally:
            accumulator.disaggregation_mode = mode

    def _queued_tokens(self) -> int:
        return sum(int(req.seqlen) for req in self.state.queue)

    def _chunked_tokens(self) -> int:
        req = self.state.scheduler.chunked_req
        return 0 if req is None else max(0, int(req.seqlen) - int(req.prefix_len))
