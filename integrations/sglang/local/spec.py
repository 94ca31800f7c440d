"""What to start: one `WorkerSpec` per worker, and the options that all workers of a cluster share."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Role = Literal["colocated", "prefill", "decode"]
Transport = Literal["mooncake", "nixl"]
ROLES: tuple[Role, ...] = ("colocated", "prefill", "decode")
TRANSPORTS: tuple[Transport, ...] = ("mooncake", "nixl")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker: its role and, for prefill and decode, what moves its KV cache.

    A pair must share a transport. `extra_args` are SGLang's own flags; a flag given here wins over ours.
    """

    role: Role
    transport: Transport | None = None
    extra_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role must be one of {', '.join(ROLES)}, not {self.role!r}")
        if self.role == "colocated" and self.transport is not None:
            raise ValueError("a colocated worker moves nothing: it takes no transport")
        if self.role != "colocated" and self.transport not in TRANSPORTS:
            raise ValueError(
                f"a {self.role} worker needs a transport, {' or '.join(TRANSPORTS)}, not {self.transport!r}"
            )


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Limits of every worker. Tokens are KV-cache slots; timeouts are SGLang's own for half a pair.

    `overlap`: SGLang's overlapped event loop, the default on a GPU. `env` also sets up the plugin in the
    workers (`KVFERRY_TELEMETRY`, `KVFERRY_REDIS`, ...).
    """

    host: str = "127.0.0.1"
    model_name: str = "kvferry-tiny"
    page_size: int = 1
    max_total_tokens: int = 16384
    max_running_requests: int = 8
    context_length: int = 8192
    bootstrap_timeout_s: int = 30
    waiting_timeout_s: int = 30
    log_level: str = "info"
    overlap: bool = False
    extra_args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in ("page_size", "max_total_tokens", "max_running_requests", "context_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


def specs(colocated: int, prefill: int, decode: int, transport: Transport) -> Iterator[WorkerSpec]:
    """Yield the specs of a cluster whose pairs all share one transport."""
    yield from (WorkerSpec("colocated") for _ in range(colocated))
    yield from (WorkerSpec("prefill", transport) for _ in range(prefill))
    yield from (WorkerSpec("decode", transport) for _ in range(decode))
