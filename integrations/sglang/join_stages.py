"""From the records of the workers to the stages of one request, as they follow one another."""

from dataclasses import dataclass

from kvferry.integrations.log.record import Stages
from kvferry.integrations.sglang.plugin import wire

_UNTIL = {
    "prefill_s": ("prepare_s", "bootstrap_s", "alloc_s", "queue_s", "prefill_s"),
    "transfer_s": ("prepare_s", "bootstrap_s", "alloc_s", "transfer_s"),
}


@dataclass(frozen=True, slots=True)
class Door:
    """When the request (its last attempt) came and when its answer was out, on the router's clock (Unix
    seconds); `here`: workers on the router's own host, whose marks can be compared with it."""

    came_s: float
    left_s: float
    here: frozenset[str] = frozenset()


def split_stages(
    prefill: wire.RequestRecord | None, decode: wire.RequestRecord | None, *, one_clock: bool
) -> Stages:
    """What lies between the prefill worker's scheduler and the last token; None where its worker is silent.

    On one clock (both workers on one host) every boundary is a mark:

        prefill received .. prepared | bootstrap, with the decode worker's alloc inside | queue | prefill |
        transfer: prompt computed .. KV there | decode queue | decode

    and the stages add up to the time between the first and the last of them. Across hosts the durations are
    chained: alloc is taken to lie wholly inside the bootstrap, and transfer ends with the last call into the
    transport, a poll of the decode worker's scheduler before decoding can begin.
    The prefill worker's own alloc (a buffer for what goes beside the KV) counts as its queue.
    """
    stages: dict[str, float | None] = {}
    inside_s = 0.0
    if prefill is not None:
        p = prefill.stages
        if decode is not None:
            inside_s = _alloc_inside(prefill, decode, one_clock)
        stages["bootstrap_s"] = None if p.bootstrap_s is None else max(0.0, p.bootstrap_s - inside_s)
        stages["queue_s"] = _sum(p.alloc_s, p.queue_s)
        stages["prefill_s"] = p.prefill_s
        stages["transfer_s"] = _acknowledged_s(prefill)
    if decode is not None:
        d = decode.stages
        stages["alloc_s"] = d.alloc_s if prefill is None or d.alloc_s is None else inside_s
        stages["decode_queue_s"] = _sum(d.queue_s, d.requeue_s)
        stages["decode_s"] = d.decode_s
        if prefill is not None and one_clock:
            computed_s, there_s = _mark(prefill, "prefill_s"), _mark(decode, "transfer_s")
            if computed_s is not None and there_s is not None:
                # its scheduler notices between two steps, or after a prompt of its own: that is its queue
                seen_s = max(0.0, there_s - computed_s)
                moved_s = _moved_s(prefill, computed_s)
                moved_s = seen_s if moved_s is None else min(moved_s, seen_s)
                stages["transfer_s"] = moved_s
                stages["decode_queue_s"] = _sum(stages["decode_queue_s"], seen_s - moved_s)
    return _rounded(**stages)


def alone_stages(record: wire.RequestRecord) -> Stages:
    """The same of a request that one worker ran from beginning to end."""
    told = record.stages
    return _rounded(
        queue_s=_sum(told.alloc_s, told.queue_s),
        prefill_s=told.prefill_s,
        decode_queue_s=told.requeue_s,
        decode_s=told.decode_s,
    )


def ingress_s(first: wire.RequestRecord, worker: str, door: Door) -> float | None:
    """From the router's door until the request stood in its first queue, in the scheduler of `worker`; where
    they share no clock, only the part inside that scheduler."""
    prepared_s = first.stages.prepare_s
    if worker not in door.here:
        return prepared_s
    return round(max(0.0, first.received_s - door.came_s) + (prepared_s or 0.0), 6)


def egress_s(last: wire.RequestRecord, worker: str, door: Door) -> float | None:
    """From the end in the scheduler of `worker` to the router's door; None where they share no clock."""
    return round(max(0.0, door.left_s - last.ended_s), 6) if worker in door.here else None


def _alloc_inside(prefill: wire.RequestRecord, decode: wire.RequestRecord, one_clock: bool) -> float:
    """Seconds of the prefill worker's bootstrap in which the decode worker had no KV room yet."""
    waited_s, alloc_s = prefill.stages.bootstrap_s or 0.0, decode.stages.alloc_s or 0.0
    if not one_clock:
        return min(waited_s, alloc_s)
    start_s = prefill.received_s + (prefill.stages.prepare_s or 0.0)
    begun_s = decode.received_s + (decode.stages.prepare_s or 0.0) + (decode.stages.bootstrap_s or 0.0)
    return max(0.0, min(start_s + waited_s, begun_s + alloc_s) - max(start_s, begun_s))


def _acknowledged_s(prefill: wire.RequestRecord) -> float | None:
    """From the prompt's end to that of the last call into the transport. Without that mark, to when the
    scheduler noticed, which is later while it is busy with other prompts."""
    computed_s = _mark(prefill, "prefill_s")
    moved_s = None if computed_s is None else _moved_s(prefill, computed_s)
    return prefill.stages.transfer_s if moved_s is None else moved_s


def _moved_s(prefill: wire.RequestRecord, computed_s: float) -> float | None:
    """From the prompt's end until the last call into the transport was done, where the plugin tells that."""
    calls = prefill.transfer
    if calls is None or calls.done_s is None:
        return None
    return max(0.0, prefill.received_s + calls.done_s - computed_s)


def _mark(record: wire.RequestRecord, stage: str) -> float | None:
    """When a stage was over, Unix seconds on the worker's clock; None when it was not reached."""
    if getattr(record.stages, stage) is None:
        return None
    spent = (getattr(record.stages, name) or 0.0 for name in _UNTIL[stage])
    return record.received_s + sum(spent)


def _sum(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _rounded(**stages: float | None) -> Stages:
    return Stages(**{name: None if value is None else round(value, 6) for name, value in stages.items()})
