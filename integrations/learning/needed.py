"""The part of a decision record that learning needs: decoding only that is several times as fast."""

from typing import Literal, get_args

import msgspec

from kvferry.integrations.log.record import SCHEMA, Stages, Status, Term

STATUSES: tuple[str, ...] = get_args(Status)
# In the order of a request's way.
STAGES = (
    "ingress_s",
    "bootstrap_s",
    "queue_s",
    "prefill_s",
    "transfer_s",
    "repack_s",
    "alloc_s",
    "decode_queue_s",
)


class NeededTerms(msgspec.Struct, frozen=True):
    ttft_s: Term = Term()
    itl_s: Term = Term()
    queue_s: Term = Term()
    prefill_s: Term = Term()
    transfer_s: Term = Term()
    repack_s: Term = Term()
    admission_s: Term = Term()


class NeededChoice(msgspec.Struct, frozen=True):
    plan: str
    mode: Literal["split", "colocated"]


class NeededOutcome(msgspec.Struct, frozen=True):
    status: Status = "ok"
    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    stages: Stages = Stages()
    rescued_from: tuple[str, ...] = ()
    served_by: str = ""
    retractions: int | None = None


class Needed(msgspec.Struct, frozen=True):
    """Fields as in `DecisionRecord`, which can stand in for it."""

    id: str
    time: float
    chosen: NeededChoice
    schema: Literal["kvferry.decision.v1"] = SCHEMA
    model_version: str = ""
    mode: Literal["live", "canary", "shadow"] = "live"
    terms: NeededTerms = NeededTerms()
    catalogue_transfer_s: float = 0.0
    fallback: str = ""
    features: tuple[float, ...] = ()
    feature_set: str = ""
    outcome: NeededOutcome | None = None
