"""Telemetry: what every request truly cost, the load, and the layout of this worker, to the store."""

import importlib
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

from kvferry.integrations.redis.keys import Keys
from kvferry.integrations.redis.url import StoreError, parse, redact
from kvferry.integrations.sglang.plugin.feature import Feature, Hook
from kvferry.integrations.sglang.plugin.settings import REDIS_ENV, WorkerSettings
from kvferry.integrations.sglang.plugin.telemetry import mooncake, nixl
from kvferry.integrations.sglang.plugin.telemetry.client import connect
from kvferry.integrations.sglang.plugin.telemetry.loads import LoadWatch
from kvferry.integrations.sglang.plugin.telemetry.meter import Meter
from kvferry.integrations.sglang.plugin.telemetry.moves import Moves
from kvferry.integrations.sglang.plugin.telemetry.requests import (
    Ended,
    Seen,
    finish_of,
    is_probe,
    queues_of,
    role_of,
)
from kvferry.integrations.sglang.plugin.telemetry.sink import Sink
from kvferry.integrations.sglang.plugin.telemetry.worker_record import transports_of, worker_record
from kvferry.integrations.sglang.plugin.wire import LoadRecord, WorkerRecord

log = logging.getLogger("kvferry.plugin")

STORE_TIMEOUT_S = 1.0
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_STREAMER = "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"
_QUEUE = "sglang.srt.disaggregation.common.utils.FastQueue"
_STATS = "sglang.srt.observability.req_time_stats.SchedulerReqTimeStats"


class Telemetry(Feature):
    """Hooks read what SGLang already keeps and hand it to the sink; nothing here waits for anything.

    Only the first attention TP rank of the first PP stage speaks, for its DP rank.
    """

    name = "telemetry"
    relies_on = (
        f"{_STATS}.set_wait_queue_entry_time",
        f"{_STATS}.set_forward_entry_time",
        f"{_STATS}.set_retract_time",
        f"{_STATS}.set_quick_finish_time",
        f"{_STATS}.reset_prefill_retry_time",
    )

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self.meter = Meter()
        self.moves = Moves()
        self.sink: Sink | None = None
        self.load: LoadWatch | None = None
        self.requests = 0
        self._mode = ""
        self._ranks = 1
        self._silent = ""

    @property
    def enabled(self) -> bool:
        return self.settings.telemetry.enabled

    def missing(self) -> str | None:
        if not self.settings.redis:
            return f"no {REDIS_ENV}: nowhere to send records"
        try:
            parse(self.settings.redis)
        except StoreError as error:
            return f"{REDIS_ENV}: {error}"
        return None

    def hooks(self) -> Sequence[Hook]:
        timed = self.meter.timed
        found = [
            Hook(f"{_SCHEDULER}._add_request_to_queue", "before", timed(self._entered)),
            Hook(f"{_SCHEDULER}.send_abort_output", "before", timed(self._dropped)),
            Hook(f"{_SCHEDULER}.publish_load_snapshot", "after", timed(self._published)),
            Hook(f"{_STREAMER}.stream_output", "before", timed(self._streamed)),
        ]
        transports = [
            calls.hooks()
            for module, calls in (
                (mooncake.MODULE, mooncake.MooncakeCalls(self.moves, self.meter)),
                (nixl.MODULE, nixl.NixlCalls(self.moves, self.meter)),
            )
            if _importable(module)
        ]
        if transports:
            found += [
                Hook(f"{_QUEUE}.put", "before", timed(self.moves.queued)),
                Hook(f"{_QUEUE}.get", "after", timed(self.moves.taken)),
            ]
        return (*found, *(hook for hooks in transports for hook in hooks))

    def start(self, scheduler: Any) -> str | None:
        parallel = importlib.import_module("sglang.srt.runtime_context").get_parallel()
        self._mode = scheduler.disaggregation_mode.value
        self._ranks = int(parallel.attn_tp_size) * int(parallel.pp_size)
        if parallel.attn_tp_rank or parallel.pp_rank or parallel.attn_cp_rank:
            self._silent = "the first rank speaks for this one"
            return None
        assert self.settings.redis is not None  # `missing` has looked
        address, settings = parse(self.settings.redis), self.settings.telemetry
        self.load = LoadWatch(scheduler, settings.load_interval_s)
        self.sink = Sink(
            lambda: connect(address, timeout_s=STORE_TIMEOUT_S, name="kvferry-worker"),
            Keys(),
            redact(self.settings.redis),
            capacity=settings.queue_records,
            stream_records=settings.stream_records,
            load_interval_s=settings.load_interval_s,
            tell=lambda: self._tell(scheduler),
            load=self._load,
        )
        self.sink.start()
        return None

    def failed(self, why: str) -> None:
        if self.sink is not None:
            self.sink.close()

    def describe(self) -> dict[str, Any]:
        sink = self.sink
        if sink is None:
            return {"silent": self._silent}
        return {
            "store": sink.label,
            "store_up": sink.up,
            "requests": self.requests,
            "sent": sink.sent,
            "dropped": sink.dropped,
            "queued": sink.queued,
            **self._cost_us(),
        }

    def _entered(self, scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        seen: Seen | None = getattr(request, "kvferry_seen", None)
        if seen is not None:  # again, after a retraction, which overwrites the first wait
            seen.first_wait_s = seen.first_wait_s or request.time_stats.wait_queue_entry_time
        elif self.sink is not None and not is_probe(request):
            request.kvferry_seen = Seen(queues_of(scheduler, self._mode), len(request.origin_input_ids))

    def _streamed(self, _streamer: Any, reqs: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        for request in reqs:
            if request.finished_reason is not None:
                self._ended(request)

    def _dropped(self, _scheduler: Any, abort_req: Any, req: Any, *args: Any, **kwargs: Any) -> None:
        if hasattr(req, "output_ids"):  # else it was refused as it came in, before there was a Req of it
            self._ended(req, getattr(abort_req, "finished_reason", None))

    def _published(self, result: Any, _scheduler: Any, *args: Any, **kwargs: Any) -> None:
        if self.load is not None:
            self.load.published(result)

    def _ended(self, request: Any, told: Any = None) -> None:
        if self.sink is None or getattr(request, "kvferry_recorded", False) or is_probe(request):
            return
        request.kvferry_recorded = True
        self.requests += 1
        now_s = time.perf_counter()
        seen: Seen | None = getattr(request, "kvferry_seen", None)
        ended = Ended(
            worker=self.instance,
            role=role_of(request, self._mode),
            rid=str(request.rid),
            room=request.bootstrap_room,
            end_s=now_s,
            wall_offset_s=time.time() - now_s,
            marks=request.time_stats,
            seen=seen,
            prompt_tokens=seen.prompt_tokens if seen else len(request.origin_input_ids),
            output_tokens=len(request.output_ids),
            cached_tokens=int(request.cached_tokens),
            retractions=int(request.retraction_count),
            attempts=int(request.prefill_attempt_count),
            finish=finish_of(request.finished_reason, told),
            move=self.moves.end(request.bootstrap_room) if self._mode == "prefill" else None,
            ranks=self._ranks,
        )
        self.sink.put(ended.record)

    def _tell(self, scheduler: Any) -> WorkerRecord:
        local = getattr(scheduler, "kvferry_local_prefill", None) is not None
        return worker_record(scheduler, self.instance, transports_of(scheduler), local)

    def _load(self) -> LoadRecord | None:
        sink, load = self.sink, self.load
        if sink is None or load is None:
            return None
        return load.record(
            self.instance, sent=sink.sent, dropped=sink.dropped, requests=self.requests, **self._cost_us()
        )

    def _cost_us(self) -> dict[str, float]:
        sink, load = self.sink, self.load
        hooks_s = self.meter.of(load.thread) if load is not None else 0.0
        return {
            "hook_us": round(hooks_s * 1e6, 1),
            "transfer_us": round((self.meter.total() - hooks_s) * 1e6, 1),
            "sink_us": round(sink.cpu_s * 1e6, 1) if sink is not None else 0.0,
        }


def _importable(module: str) -> bool:
    """Not tried in a process without a scheduler, which needs none of it."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return True
    try:
        importlib.import_module(module)
    except ImportError as error:
        log.info("telemetry: no counters of %s: %s", module, error)
        return False
    return True
