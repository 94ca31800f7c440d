"""What came of a request, as the router has seen it."""

import time
from typing import TYPE_CHECKING

from kvferry.integrations.log.record import Outcome, Stages, Status
from kvferry.integrations.sglang.join_clock import is_here
from kvferry.integrations.sglang.join_stages import Door
from kvferry.policy.plan import Plan, Split

if TYPE_CHECKING:
    from kvferry.integrations.sglang.passage import Passage


def ends(plan: Plan) -> tuple[str, str]:
    """Ids of the workers that prefill and decode."""
    return (plan.prefill, plan.decode) if isinstance(plan, Split) else (plan.worker, plan.worker)


def outcome_of(passage: "Passage", status: Status, error: str | None, plan: Plan) -> Outcome:
    """`plan`: the last one that was tried."""
    usage, before = passage.usage, passage.prefill_usage
    output = usage.output_tokens if usage.output_tokens is not None else (passage.events or None)
    itl_s = None
    if (
        passage.body.stream
        and passage.first_s is not None
        and passage.last_s is not None
        and (output or 0) > 1
    ):
        gaps = max(1.0, (output or 2) / passage.request.sequences - 1)
        itl_s = (passage.last_s - passage.first_s) / gaps
    split = isinstance(plan, Split)
    source = before if split else usage
    rescued = bool(passage.given_up)
    return Outcome(
        status=status,
        ttft_s=_ttft_s(passage),
        itl_s=itl_s,
        e2e_s=passage.ferry.clock() - passage.started_s,
        output_tokens=output,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=source.cached_tokens,
        stages=Stages(
            queue_s=source.queue_s,
            prefill_s=source.prefill_s,
            transfer_s=before.after_prefill_s if split else None,
            rescue_s=passage.attempt_s - passage.started_s if rescued else None,
        ),
        rescued_from=tuple(passage.given_up),
        served_by=plan.key if rescued and status == "ok" else "",
        error=error,
    )


def door_of(passage: "Passage") -> Door:
    """Both times by the wall clock, the way between them by the monotonic one."""
    members = passage.ferry.fleet.members
    sent = passage.trip.sent if passage.trip is not None else None
    workers = sent.workers().values() if sent is not None else ()
    here = frozenset(worker for worker in workers if is_here(members[worker].worker.host))
    now_s = time.time()
    return Door(now_s - (passage.ferry.clock() - passage.attempt_s), now_s, here)


def _ttft_s(passage: "Passage") -> float | None:
    """Seen at the door when streamed. Otherwise nothing shows the first token itself: a split has the
    prefill worker's answer just before it, a colocated worker may tell it."""
    seen_s = passage.first_s if passage.body.stream else passage.prefilled_s
    split = passage.decision is not None and isinstance(passage.decision.plan, Split)
    if passage.body.stream or split:
        return seen_s - passage.started_s if seen_s is not None else None
    return passage.usage.first_token_s
