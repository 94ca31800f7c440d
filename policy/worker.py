"""A serving worker as the router knows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvferry.policy.kvshape import KVShape
from kvferry.policy.layout import KVLayout


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    COLOCATED = "colocated"


@dataclass(frozen=True, slots=True)
class Load:
    """A worker's own counters, read at `time_s` on the router's clock (SGLang: GET /v1/loads).

    `foreign_*` is the part of the counters that was not this router's own in-flight work (nor that of
    routers it shares leases with) when they were read; the policy adds own work as it is now.
    `prefill_share` is the part of recent time the worker spent in prefill steps. `stall_s_per_token`: how
    long running decodes were held up per token that was prefilled among them, as measured by the worker's
    plugin; 0 when nobody measures it.
    """

    time_s: float = 0.0
    running_requests: int = 0
    waiting_requests: int = 0
    waiting_uncached_tokens: int = 0
    used_tokens: int = 0
    bootstrap_queue: int = 0
    inflight_queue: int = 0
    prealloc_queue: int = 0
    transfer_queue: int = 0
    retracted_queue: int = 0
    foreign_prefill_tokens: float = 0.0
    foreign_decodes: float = 0.0
    foreign_context_tokens: float = 0.0
    prefill_share: float = 0.0
    stall_s_per_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a worker computes; `reported` says whether the worker's own counters are behind it.

    prefill_s(n new tokens, c cached) = prefill_base_s + prefill_s_per_token * n
    + prefill_s_per_token2 * n * (c + n / 2).
    decode_step_s(b sequences, s context tokens) = decode_base_s + decode_s_per_sequence * b
    + decode_s_per_context_token * s.  A mixed step adds a chunk's prefill time to the decode step.
    """

    prefill_base_s: float = 0.004
    prefill_s_per_token: float = 1 / 20_000
    prefill_s_per_token2: float = 0.0
    decode_base_s: float = 0.008
    decode_s_per_sequence: float = 5e-5
    decode_s_per_context_token: float = 3e-8
    chunk_tokens: int = 8192
    spread: float = 0.25
    reported: bool = False


@dataclass(frozen=True, slots=True)
class Worker:
    """One SGLang server. `id` is stable across restarts (its URL unless named otherwise).

    `transports`: the one it was started with first. `bootstrap_ports`: where a prefill worker listens for
    each of them, when that is not `bootstrap_port`. `mixes_chunks`: running decodes get a token with every
    prefill chunk (SGLang's --enable-mixed-chunk; prefill on decode workers); else they wait until no prompt
    does.
    """

    id: str
    url: str
    role: Role
    model: str
    shape: KVShape
    layout: KVLayout = KVLayout()
    bootstrap_host: str = ""
    bootstrap_port: int | None = None
    transports: tuple[str, ...] = ()
    bootstrap_ports: Mapping[str, int] = field(default_factory=dict)
    host: str = ""
    local_prefill: bool = False
    mixes_chunks: bool = False
    max_total_tokens: int = 1 << 20
    max_running_requests: int = 256
    context_length: int = 1 << 20
    speed: Speed = Speed()
    load: Load = Load()
    healthy: bool = True
    facts: Mapping[str, str] = field(default_factory=dict)

    def bootstrap_port_of(self, transport: str) -> int | None:
        """Where a decode worker meets this prefill worker for a move over `transport`."""
        return self.bootstrap_ports.get(transport, self.bootstrap_port)

    @property
    def can_colocate(self) -> bool:
        return self.role is Role.COLOCATED or (self.role is Role.DECODE and self.local_prefill)
