"""What a worker's plugin sends: the records of the telemetry stream, read by routers and by `kvferry logs`.

Fields are only ever added, each with a default. Times are Unix seconds on the worker's clock; durations,
which alone compare across hosts, are in seconds. Never any token or text.
"""

from typing import Literal

import msgspec

SCHEMA: Literal["kvferry.telemetry.v1"] = "kvferry.telemetry.v1"
LOCAL_MARK = "do_local_prefill"  # sglang #34773's draft field; also what stands in bootstrap_host then
RID_CHARS = 256  # of an id, which may be a client's own and as long as a body may be

Role = Literal["prefill", "decode", "colocated", "local"]


class Stages(msgspec.Struct, frozen=True, omit_defaults=True):
    """A partition of the time from `received` to the end, for this role: the parts add up to `wall_s`.

    All: prepare (until it stood in its first queue: checks, grammar). prefill: bootstrap (until the decode
    worker has told its pages), alloc, queue, prefill, transfer (until the last byte is acknowledged).
    decode: bootstrap (handshake), alloc (KV room), transfer (until the KV is here: the prefill worker's
    queue and forward pass are in it), queue, decode. colocated, local: queue, prefill (to the first token),
    decode. requeue: waits after a retraction. None: not reached. The marks that bound each are in
    `telemetry/stages.py`.
    """

    bootstrap_s: float | None = None
    alloc_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    transfer_s: float | None = None
    decode_s: float | None = None
    prepare_s: float | None = None
    requeue_s: float | None = None


class Transfer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The calls into the transport for one request, on the prefill worker.

    `wait_s`: chunks queued for a transfer thread; `build_s`: descriptor lists; `busy_s`: inside the
    library until it was done. `span_s`: from the first chunk queued to the last done; `done_s`: from the
    request's `received_s` to that end, which the scheduler notices later (`Stages.transfer_s`). `bytes` are
    KV alone, `aux_bytes` what goes with the last chunk (first token, logprobs). Counted on the first of
    `ranks` ranks (attention TP times PP), each of which moved a share of its own.
    """

    transport: str = ""
    bytes: int = 0
    descriptors: int = 0
    chunks: int = 0
    calls: int = 0
    wait_s: float = 0.0
    build_s: float = 0.0
    busy_s: float = 0.0
    span_s: float = 0.0
    aux_bytes: int = 0
    ranks: int = 1
    done_s: float | None = None


class Queues(msgspec.Struct, frozen=True, omit_defaults=True):
    """The worker as the request found it, itself not counted."""

    waiting: int = 0
    running: int = 0
    bootstrap: int = 0
    inflight: int = 0
    prealloc: int = 0
    transfer: int = 0
    retracted: int = 0
    local: int = 0
    used_tokens: int = 0


class RequestRecord(msgspec.Struct, frozen=True, omit_defaults=True, tag="request"):
    """One request that ended on one worker. Joined on `room` (split) or `rid`, of which RID_CHARS are kept.
    May come twice.

    `finish`: length, stop, abort or error. `wall_s`: `received_s` to the end, in the scheduler.
    `first_token_s`: `received_s` to the first token known there. `attempts`: prefills begun before the
    decode worker was ready. `worker`: the plugin's `instance` in /server_info.
    """

    worker: str
    role: Role
    rid: str
    room: int | None = None
    ended_s: float = 0.0
    received_s: float = 0.0
    wall_s: float = 0.0
    first_token_s: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    retractions: int = 0
    attempts: int = 0
    finish: str = ""
    stages: Stages = Stages()
    transfer: Transfer | None = None
    at_enqueue: Queues = Queues()
    schema: str = SCHEMA


class LocalLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """Colocated work on a decode worker. Sums since the start: `stalls` chunks, of `stalled_tokens` in all,
    held running decodes up for `stall_s` in all."""

    queue: int = 0
    queue_tokens: int = 0
    chunk_tokens: int = 0
    stalls: int = 0
    stalled_tokens: int = 0
    stall_s: float = 0.0


class LoadRecord(msgspec.Struct, frozen=True, omit_defaults=True, tag="load"):
    """One worker's counters, at a set interval.

    `load`: the numbers of /v1/loads, those of a section as `section.name`, as they were at `taken_s`; an
    idle scheduler takes none. Sums since the start, the telemetry's own: records `sent` and `dropped`,
    `requests` ended, CPU in hooks on the scheduler's thread (`hook_us`), on transfer threads
    (`transfer_us`) and in the sink (`sink_us`).
    """

    worker: str
    time_s: float = 0.0
    taken_s: float = 0.0
    load: dict[str, float] = {}
    local: LocalLoad | None = None
    sent: int = 0
    dropped: int = 0
    hook_us: float = 0.0
    requests: int = 0
    transfer_us: float = 0.0
    sink_us: float = 0.0
    schema: str = SCHEMA


class WorkerRecord(msgspec.Struct, frozen=True, omit_defaults=True, tag="worker"):
    """What a router would otherwise have to guess. Sent at the start, every 10 s, and first of all after the
    store was away; also under the key `Keys.told(worker)`.

    `layers`, `bytes_per_token`: of this rank's KV pool (a PP stage has a part of the layers; TP ranks
    split the heads). `kv_heads`: of the model. `transports`: name -> bootstrap port, None on a decode worker.
    """

    worker: str
    time_s: float = 0.0
    url: str = ""
    role: str = ""
    model: str = ""
    sglang: str = ""
    layers: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    page_size: int = 1
    dtype: str = ""
    tp: int = 1
    pp: int = 1
    dp: int = 1
    bytes_per_token: int = 0
    max_total_tokens: int = 0
    vocab_tokens: int = 0
    transports: dict[str, int | None] = {}
    local_prefill: bool = False
    host: str = ""
    port: int = 0
    schema: str = SCHEMA


Record = RequestRecord | LoadRecord | WorkerRecord

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """JSON, with its kind in `type`."""
    return _encoder.encode(record)


def decode(data: bytes) -> Record:
    """Raises msgspec.DecodeError for anything else."""
    return _decoder.decode(data)
