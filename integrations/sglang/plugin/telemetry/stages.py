"""Where a request's time in a scheduler went, from the marks that SGLang keeps on `req.time_stats`.

A mark is seconds of time.perf_counter(), 0 while it was not passed. Every stage ends at one mark and begins
where the one before ended, so the stages add up to the time from `scheduler_recv_time` to the end:

| role             | stage       | ends at                                                                   |
|------------------|-------------|---------------------------------------------------------------------------|
| prefill          | prepare_s   | prefill_bootstrap_queue_entry_time                                        |
|                  | bootstrap_s | bootstrap_done_time, or wait_queue_entry_time when prefilled before it    |
|                  | alloc_s     | wait_queue_entry_time                                                     |
|                  | queue_s     | forward_entry_time                                                        |
|                  | prefill_s   | prefill_finished_time                                                     |
|                  | transfer_s  | completion_time                                                           |
| decode           | prepare_s   | decode_prealloc_queue_entry_time                                          |
|                  | bootstrap_s | bootstrap_done_time                                                       |
|                  | alloc_s     | decode_transfer_queue_entry_time                                          |
|                  | transfer_s  | wait_queue_entry_time, the first                                          |
|                  | queue_s     | forward_entry_time                                                        |
|                  | decode_s    | completion_time, less requeue_s                                           |
| colocated, local | prepare_s   | wait_queue_entry_time, the first                                          |
|                  | queue_s     | forward_entry_time                                                        |
|                  | prefill_s   | prefill_finished_time                                                     |
|                  | decode_s    | completion_time, less requeue_s                                           |

requeue_s: waits after a retraction, from wait_queue_entry_time to the next forward (`queue_duration_s` less
the first wait). A request that ended early has no later marks: the stage it was in ends with it, and those
behind it are None. So are stages whose mark SGLang skipped; their time is in the next one. A prefill that
was given up because its bootstrap had not come, and the time until the next try, count as bootstrap.
"""

from dataclasses import dataclass
from typing import Any

from kvferry.integrations.sglang.plugin.wire import Role, Stages


@dataclass(frozen=True, slots=True)
class Parts:
    """Stages in seconds, and the time from received to the first token known here (None before it)."""

    stages: Stages
    wall_s: float
    first_token_s: float | None


def partition(role: Role, marks: Any, end_s: float, first_wait_s: float = 0.0) -> Parts:
    """`marks`: SGLang's time_stats; `end_s`: now, where no completion_time is set. `first_wait_s`: the first
    wait_queue_entry_time, where a retraction has overwritten it."""
    received = marks.scheduler_recv_time
    end = max(marks.completion_time or end_s, received)
    first_wait = first_wait_s or marks.wait_queue_entry_time
    forward = _forward(marks)
    cuts = _cuts(role, marks, first_wait, forward)
    spent: dict[str, float] = {}
    at = received
    last = max((i for i, (_, mark) in enumerate(cuts) if mark > 0), default=-1)
    for i, (stage, mark) in enumerate(cuts):
        if mark <= 0 and i < last:
            continue
        stop = min(max(mark, at), end) if i <= last else end
        spent[stage] = stop - at
        at = stop
        if i > last:
            break
    again = _requeued(marks, first_wait, forward, end)
    if again > 0 and "decode_s" in spent:
        spent["requeue_s"] = min(again, spent["decode_s"])
        spent["decode_s"] -= spent["requeue_s"]
    token = marks.decode_prebuilt_finish_time if role == "decode" else marks.prefill_finished_time
    return Parts(Stages(**spent), end - received, max(0.0, min(token, end) - received) if token > 0 else None)


def _forward(marks: Any) -> float:
    # a request that finished with the token that came with its KV gets forward_entry_time overwritten
    forward: float = marks.forward_entry_time
    if 0 < marks.last_forward_entry_time < forward == marks.completion_time:
        forward = marks.last_forward_entry_time
    return forward


def _cuts(role: Role, marks: Any, first_wait: float, forward: float) -> list[tuple[str, float]]:
    """The stages of a role with the mark that ends each; the last has none, it ends with the request."""
    if role == "prefill":
        return [
            ("prepare_s", marks.prefill_bootstrap_queue_entry_time),
            ("bootstrap_s", _left_bootstrap(marks)),
            ("alloc_s", marks.wait_queue_entry_time),
            ("queue_s", forward),
            ("prefill_s", marks.prefill_finished_time),
            ("transfer_s", 0.0),
        ]
    if role == "decode":
        return [
            ("prepare_s", marks.decode_prealloc_queue_entry_time),
            ("bootstrap_s", marks.bootstrap_done_time),
            ("alloc_s", marks.decode_transfer_queue_entry_time),
            ("transfer_s", first_wait),
            ("queue_s", forward),
            ("decode_s", 0.0),
        ]
    return [
        ("prepare_s", first_wait),
        ("queue_s", forward),
        ("prefill_s", marks.prefill_finished_time),
        ("decode_s", 0.0),
    ]


def _left_bootstrap(marks: Any) -> float:
    seen = [t for t in (marks.bootstrap_done_time, marks.wait_queue_entry_time) if t > 0]
    return min(seen, default=0.0)


def _requeued(marks: Any, first_wait: float, forward: float, end: float) -> float:
    if forward <= 0 or first_wait <= 0:
        return 0.0
    again: float = marks.queue_duration_s - (forward - first_wait)
    waits_now = marks.last_forward_entry_time == 0.0 and marks.wait_queue_entry_time > forward
    if waits_now:
        again += end - marks.wait_queue_entry_time
    return again if again > 1e-9 else 0.0
