"""A worker's own counters, as GET /v1/loads tells them, and the part of them that is not ours."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from kvferry.policy.worker import Load, Role


class Held(Protocol):
    """Work in flight on one worker."""

    @property
    def prefill_tokens(self) -> float: ...
    @property
    def decodes(self) -> float: ...
    @property
    def context_tokens(self) -> float: ...


def load_of(answer: Mapping[str, Any], time_s: float) -> Load:
    """Sum GET /v1/loads over the worker's DP ranks."""
    ranks = answer.get("loads") or []

    def total(name: str, section: str = "") -> int:
        return sum(int((rank.get(section) or {} if section else rank).get(name) or 0) for rank in ranks)

    return Load(
        time_s=time_s,
        running_requests=total("num_running_reqs"),
        waiting_requests=total("num_waiting_reqs"),
        waiting_uncached_tokens=total("num_waiting_uncached_tokens"),
        used_tokens=total("num_total_tokens"),
        bootstrap_queue=total("prefill_bootstrap_queue_reqs", "disaggregation"),
        inflight_queue=total("prefill_inflight_queue_reqs", "disaggregation"),
        prealloc_queue=total("decode_prealloc_queue_reqs", "disaggregation"),
        transfer_queue=total("decode_transfer_queue_reqs", "disaggregation"),
        retracted_queue=total("decode_retracted_queue_reqs", "disaggregation"),
    )


def with_foreign(
    load: Load,
    role: Role,
    *known: Held,
    measured_share: float,
    own_share: float = 0.0,
    stall_s_per_token: float = 0.0,
) -> Load:
    """`load` less what is `known` to have been in flight when it was taken: the rest is somebody else's.

    Prefill workers run no decodes, and the KV they hold is that of prompts which are counted already. The
    measured share of time in prefill is another average than that of own dispatches (`Book.prefill_share`):
    somebody else's is what is beyond twice that.
    """
    decodes = load.running_requests + load.waiting_requests if role is not Role.PREFILL else 0
    context = load.used_tokens if role is not Role.PREFILL else 0
    return dataclasses.replace(
        load,
        foreign_prefill_tokens=max(
            0.0, load.waiting_uncached_tokens - sum(own.prefill_tokens for own in known)
        ),
        foreign_decodes=max(0.0, decodes - sum(own.decodes for own in known)),
        foreign_context_tokens=max(0.0, context - sum(own.context_tokens for own in known)),
        prefill_share=max(0.0, measured_share - 2.0 * own_share),
        stall_s_per_token=stall_s_per_token,
    )
