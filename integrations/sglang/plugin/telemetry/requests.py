"""A request as telemetry sees it: noted when it enters the worker, recorded when it ends."""

from dataclasses import dataclass
from typing import Any, cast

from kvferry.integrations.sglang.plugin.telemetry.moves import Move
from kvferry.integrations.sglang.plugin.telemetry.stages import partition
from kvferry.integrations.sglang.plugin.wire import RID_CHARS, Queues, RequestRecord, Role, Stages

FAKE_HOST = "2.2.2.2"  # SGLang's FAKE_BOOTSTRAP_HOST: warm-up and health checks of prefill and decode workers
HEALTH_CHECK = "HEALTH_CHECK"  # how the ids of its health checks begin
ABORTED = 499  # FINISH_ABORT with a status of at least 400 was no wish of the client's, but for this one
_STOPS = ("FINISH_MATCHED_TOKEN", "FINISH_MATCHED_STR", "FINISHED_MATCHED_REGEX")


@dataclass(slots=True)
class Seen:
    """Hung on a request when it enters. `first_wait_s` is kept when a retraction overwrites SGLang's mark."""

    queues: Queues
    prompt_tokens: int
    first_wait_s: float = 0.0
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """What is read from a request at its end, on the scheduler's thread; the record is made of it later."""

    worker: str
    role: Role
    rid: str
    room: int | None
    end_s: float
    wall_offset_s: float
    marks: Any
    seen: Seen | None
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    retractions: int
    attempts: int
    finish: str
    move: Move | None
    ranks: int

    def record(self) -> RequestRecord:
        """Durations to the microsecond."""
        parts = partition(self.role, self.marks, self.end_s, self.seen.first_wait_s if self.seen else 0.0)
        rounded = {
            name: round(value, 6)
            for name in Stages.__struct_fields__
            if (value := getattr(parts.stages, name)) is not None
        }
        received = self.marks.scheduler_recv_time + self.wall_offset_s
        return RequestRecord(
            worker=self.worker,
            role=self.role,
            rid=self.rid[:RID_CHARS],
            room=self.room,
            received_s=round(received, 6),
            ended_s=round(received + parts.wall_s, 6),
            wall_s=round(parts.wall_s, 6),
            first_token_s=None if parts.first_token_s is None else round(parts.first_token_s, 6),
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            retractions=self.retractions,
            attempts=self.attempts,
            finish=self.finish,
            stages=Stages(**rounded),
            transfer=self.move.transfer(self.ranks, self.marks.scheduler_recv_time) if self.move else None,
            at_enqueue=self.seen.queues if self.seen else Queues(),
        )


def is_probe(request: Any) -> bool:
    """Whether it is one of SGLang's own: a warm-up or a health check."""
    return request.bootstrap_host == FAKE_HOST or str(request.rid).startswith(HEALTH_CHECK)


def role_of(request: Any, mode: str) -> Role:
    """`mode`: the worker's, as SGLang names it."""
    if getattr(request, "kvferry_local", False):
        return "local"
    return "colocated" if mode == "null" else cast(Role, mode)


def finish_of(reason: Any, told: Any = None) -> str:
    """SGLang's reason in one word. A request that has none was ended in a queue: by an abort, or refused with
    a status in what its client is `told` (an AbortReq's finished_reason)."""
    if reason is None:
        status = told.get("status_code") if isinstance(told, dict) else None
        return "error" if _is_error(status) else "abort"
    name = type(reason).__name__
    if name == "FINISH_LENGTH":
        return "length"
    if name in _STOPS:
        return "stop"
    return "error" if _is_error(getattr(reason, "status_code", None)) else "abort"


def _is_error(status: int | None) -> bool:
    return status is not None and status >= 400 and status != ABORTED


def queues_of(scheduler: Any, mode: str) -> Queues:
    """What a request finds that enters now."""
    used, _ = scheduler.pool_stats_observer.get_pool_stats().get_kv_token_stats()
    bootstrap = inflight = prealloc = transfer = retracted = 0
    if mode == "prefill":
        bootstrap = len(scheduler.disagg_prefill_bootstrap_queue.queue)
        inflight = len(scheduler.disagg_prefill_inflight_queue)
    elif mode == "decode":
        prealloc = len(scheduler.disagg_decode_prealloc_queue.queue)
        transfer = len(scheduler.disagg_decode_transfer_queue.queue)
        retracted = len(scheduler.disagg_decode_prealloc_queue.retracted_queue)
    local = getattr(scheduler, "kvferry_local_prefill", None)
    return Queues(
        local=local.local_load().queue if local is not None else 0,
        waiting=len(scheduler.waiting_queue),
        running=len(scheduler.running_batch.reqs),
        bootstrap=bootstrap,
        inflight=inflight,
        prealloc=prealloc,
        transfer=transfer,
        retracted=retracted,
        used_tokens=int(used),
    )
