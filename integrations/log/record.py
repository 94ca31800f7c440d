"""`kvferry.decision.v1`: one JSON object per request, what was decided, why, and what then happened.

Fields are only ever added to a version, never renamed or removed, and every field added later has a
default: a reader ignores what it does not know and fills in what is missing. Never any prompt text.
"""

from typing import Literal

import msgspec

SCHEMA: Literal["kvferry.decision.v1"] = "kvferry.decision.v1"
NEVER_S = 1e9  # stands for an infinite or undefined prediction: JSON has no infinity

Status = Literal["ok", "failed", "cancelled", "rejected"]


class Term(msgspec.Struct, frozen=True):
    """One predicted quantity: median, 90th and (0: nobody said) 99th percentile, in the unit of its field."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


class Terms(msgspec.Struct, frozen=True):
    """Predicted costs in seconds; the meaning of each is that of `kvferry.policy.costs.Costs`."""

    queue_s: Term = Term()
    prefill_s: Term = Term()
    transfer_s: Term = Term()
    repack_s: Term = Term()
    admission_s: Term = Term()
    ttft_s: Term = Term()
    itl_s: Term = Term()
    harm_s: Term = Term()


class Slo(msgspec.Struct, frozen=True):
    """Seconds."""

    ttft_s: float = 0.0
    itl_s: float = 0.0


class RequestFacts(msgspec.Struct, frozen=True):
    """`cached_tokens`: prompt tokens believed to be held by the chosen prefill worker when deciding. `tenant`
    and `family` (the prompt's beginning): hashes, "" where nobody told or nothing could be hashed."""

    model: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    max_new_tokens: int = 0
    expected_output_tokens: float = 0.0
    expected_output_tokens_p90: float = 0.0
    sequences: int = 1
    priority: int = 0
    slo: Slo = Slo()
    endpoint: str = ""
    stream: bool = False
    seed: int = 0
    tenant: str = ""
    family: str = ""


class Chosen(msgspec.Struct, frozen=True):
    """The plan. Colocated: `prefill` and `decode` are the same worker, `transport` is null.

    `moved_bytes` and `descriptors` are predictions; `score` is what the policy minimised. `on_decode`: the
    plan is a colocated one, and its worker a decode worker that prefills by itself.
    """

    plan: str
    mode: Literal["split", "colocated"]
    prefill: str
    decode: str
    transport: str | None = None
    relation: str = ""
    path_class: str = ""
    moved_bytes: int = 0
    descriptors: int = 0
    score: float = 0.0
    on_decode: bool = False


class Alternative(msgspec.Struct, frozen=True):
    """A plan that was not taken, with the same terms."""

    plan: str
    terms: Terms = Terms()
    score: float = 0.0
    relation: str = ""
    moved_bytes: int = 0
    descriptors: int = 0


class Propensity(msgspec.Struct, frozen=True):
    """Probability with which this mode, and this very plan, was taken."""

    mode: float = 1.0
    plan: float = 1.0


class Stages(msgspec.Struct, frozen=True):
    """Measured stages in seconds, in the order of the request's way: they add up to `e2e_s`. Null where
    nobody measured one, and where none such was.

    rescue: given to attempts that failed before their first byte, until the one that served went out.
    ingress: from there, or from the router's door, until the request stands in its first queue: HTTP,
    tokenizer, until the scheduler looks (which it does between two forward passes), checks. Where router
    and worker share no clock, that is no host, only what comes after the scheduler has looked. egress: from
    the scheduler's last token until the router has passed the answer on; null where they share none.
    bootstrap: until the pair has shaken hands and the decode worker has told its pages, less `alloc_s`, the
    part of it in which that worker had no KV room.
    queue: until the prefill starts. prefill: to the prompt's end. transfer: from there until the last call
    into the transport is done or, where nobody tells that, until the decode worker has seen the KV; what
    travelled before is hidden in the prefill. repack: changing the layout, where that is no part of the
    transfer. decode_queue: until decoding starts, which includes noticing that the KV is there, and again
    after every retraction. decode: to the last token.
    Without the plugin in a worker these are what its answer tells: queue, prefill, and as transfer all that
    came after the prefill on the prefill worker.
    """

    bootstrap_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    transfer_s: float | None = None
    repack_s: float | None = None
    alloc_s: float | None = None
    ingress_s: float | None = None
    decode_queue_s: float | None = None
    decode_s: float | None = None
    egress_s: float | None = None
    rescue_s: float | None = None


class Moved(msgspec.Struct, frozen=True):
    """The prefill worker's calls into the transport, summed over sequences. wait: chunks queued for a
    transfer thread; build: descriptor lists; busy: inside the library; span: first chunk queued to last
    done, of the sequence that took longest. `aux_bytes` beside the KV."""

    transport: str = ""
    chunks: int = 0
    calls: int = 0
    wait_s: float = 0.0
    build_s: float = 0.0
    busy_s: float = 0.0
    span_s: float = 0.0
    aux_bytes: int = 0


Missing = Literal["no_plugin", "telemetry_off", "unheard", "no_record", "unnamed"]


class Outcome(msgspec.Struct, frozen=True):
    """What happened. `prompt_tokens` and `cached_tokens` are the worker's own count.

    `rescued_from`: keys of the plans that were given up before the first byte, in order.
    `served_by`: key of the plan that answered, "" when it is the chosen one. `error`: one line.
    `moved_bytes`, `descriptors`: as counted by the prefill worker's plugin, KV only; `moved`: its calls.
    `retractions`: how often decoding was interrupted for want of KV room. `found`: by role (prefill, decode,
    colocated, local), what waited and ran on that worker when the request came; zeros are left out.
    Of several sequences, stages and `found` are those of the one that ended last, the rest are sums.
    `missing`: involved workers whose telemetry is not in here, and why (`unheard`: its plugin says that it
    sends, and nothing came lately; `no_record`: nothing of this request came in time; `unnamed`: samples of
    one prompt got ids that only the worker knows).
    """

    status: Status = "ok"
    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    stages: Stages = Stages()
    moved_bytes: int | None = None
    descriptors: int | None = None
    rescued_from: tuple[str, ...] = ()
    served_by: str = ""
    error: str | None = None
    moved: Moved | None = None
    retractions: int | None = None
    found: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    missing: dict[str, Missing] = msgspec.field(default_factory=dict)


class Picture(msgspec.Struct, frozen=True):
    """All that the decision was made from, exactly (`picture`, `replay`): the id of a `kvferry.cluster.v1`
    table, and numbers, base64 in JSON."""

    cluster: str
    numbers: bytes


class DecisionRecord(msgspec.Struct, frozen=True):
    """One request. `time`: Unix seconds. `outcome` is null until the request has ended.

    `mode`: whether the decision acted (`live`, `canary`) or was only logged (`shadow`). `arm`: live, canary
    or safe (the safe rule, to compare with), drawn by `request.seed`; propensities are those within the arm.
    `safe_rule`: the named rule that decided in place of an uncertain prediction, else "".
    `deadline_s`: how long after dispatch the first byte might take before the router rescued.
    `structured_*`: medians before the model `model_version` corrected them; `fallback`: why that one, though
    there, did not. `features`: what it was (or would have been) shown of the chosen plan, in the order of
    `feature_set`. `catalogue_transfer_s`: the transfer with nothing learned of its link, 0 where it is a
    colocated plan or nobody said. `explored`: the plan was drawn to learn from it, and another one would have
    been chosen.
    `picture`: null where none was taken.
    """

    id: str
    time: float
    chosen: Chosen
    reason: str
    schema: Literal["kvferry.decision.v1"] = SCHEMA
    router: str = ""
    policy: str = ""
    model_version: str = ""
    mode: Literal["live", "canary", "shadow"] = "live"
    request: RequestFacts = RequestFacts()
    reasons_against: dict[str, str] = msgspec.field(default_factory=dict)
    terms: Terms = Terms()
    alternatives: tuple[Alternative, ...] = ()
    propensity: Propensity = Propensity()
    safe_rule: str = ""
    deadline_s: float = 0.0
    view_age_s: float = 0.0
    decide_us: float = 0.0
    structured_ttft_s: float = 0.0
    structured_itl_s: float = 0.0
    catalogue_transfer_s: float = 0.0
    fallback: str = ""
    features: tuple[float, ...] = ()
    feature_set: str = ""
    explored: bool = False
    arm: str = ""
    picture: Picture | None = None
    outcome: Outcome | None = None
