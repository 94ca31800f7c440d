"""What is simulated: the workers, what joins them, and how far the truth is from what routers believe."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvferry.policy.request import SLO
from kvferry.policy.worker import Role


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One SGLang worker. `chunk_tokens`: prefill tokens per step, running decodes taken off it.

    `mixed_chunk`: whether running decodes take part in steps with prefill (SGLang's --enable-mixed-chunk);
    if not, they wait until no prompt does, as they do by default in SGLang.
    `reserve_tokens`: KV room beyond the prompt that must be free when a request is let in (SGLang's
    decode workers: 512). `prefix_cache`: whether prompts' full blocks are kept and found again.
    `nic`: workers that name the same one share its bandwidth (when empty: those that name the same `host`).
    """

    id: str
    role: Role
    model: str
    gpu: str
    tp: int
    local_prefill: bool = False
    chunk_tokens: int = 2048
    mixed_chunk: bool = True
    max_total_tokens: int = 400_000
    max_running_requests: int = 256
    reserve_tokens: int = 512
    prefix_cache: bool = True
    host: str = ""
    nic: str = ""

    @property
    def prefills(self) -> bool:
        return self.role is not Role.DECODE or self.local_prefill


@dataclass(frozen=True, slots=True)
class TruthSpec:
    """How the simulated world differs from its catalogue, drawn from the run's seed.

    `speed_sigma`: lognormal spread of workers' speeds. `step_sigma`: lognormal noise of each step.
    `contention_share`, `contention_period_s`: foreign traffic takes a NIC's bandwidth down by up to that
    share, redrawn about every period. `bandwidth_sigma`: lognormal spread of NICs' true bandwidths.
    """

    speed_sigma: float = 0.05
    step_sigma: float = 0.03
    contention_share: float = 0.2
    contention_period_s: float = 10.0
    bandwidth_sigma: float = 0.1


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """`path_class` (configs/links.toml) joins workers on different hosts. A router polls every worker
    each `poll_s` and sees the answer `staleness_s` later; `router_s` passes between a request's arrival
    and its reaching a worker."""

    name: str
    engines: tuple[EngineSpec, ...]
    path_class: str = "ib_ndr400_gdr_per_nic"
    transport: str = "mooncake"
    poll_s: float = 1.0
    staleness_s: float = 0.0
    router_s: float = 0.002
    truth: TruthSpec = field(default_factory=TruthSpec)


@dataclass(frozen=True, slots=True)
class SLORule:
    """TTFT objective = `ttft_s` + `ttft_s_per_token` * prompt tokens; mean-ITL objective = `itl_s`."""

    ttft_s: float = 0.5
    ttft_s_per_token: float = 0.25e-3
    itl_s: float = 0.05

    def of(self, prompt_tokens: int) -> SLO:
        return SLO(self.ttft_s + self.ttft_s_per_token * prompt_tokens, self.itl_s)


@dataclass(frozen=True, slots=True)
class PathChange:
    """At `time_s`, all NICs of `worker` ("" = every worker) move `factor` times their true bandwidth."""

    time_s: float
    factor: float
    worker: str = ""


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """At `time_s` a worker dies (its requests fail and go elsewhere) or returns, empty."""

    time_s: float
    worker: str
    alive: bool


Change = PathChange | WorkerChange
Watch = Callable[[int, int], None]
"""Called with requests ended and requests in all, for a progress display."""
