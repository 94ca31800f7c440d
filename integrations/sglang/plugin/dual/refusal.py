"""What this worker would have to be started without, for two transports to serve it."""

import os
from typing import Any

_TRUE = ("1", "true", "yes", "y", "on", "t")
# Each has state of its own in SGLang's KV manager, of which the pair has two, or was never run with two.
_ATTRIBUTES = (
    ("enable_pd_role_switch", False, "--enable-pd-role-switch: NIXL cannot switch roles"),
    ("enable_hisparse", False, "--enable-hisparse: NIXL and Mooncake label its buffers differently"),
    ("pp_size", 1, "pipeline parallelism: not tested with two transports"),
    ("nnodes", 1, "several nodes: not tested with two transports"),
    ("dcp_size", 1, "decode context parallelism: not tested with two transports"),
    ("disaggregation_decode_allocation_policy", "early", "late decode allocation: not tested"),
    ("disaggregation_decode_host_receive_threshold", 1, "receiving in host memory: not tested"),
    ("enable_prefill_cp", False, "prefill context parallelism: not tested"),
)


def environment_refuses() -> str | None:
    """What can be known in every process, before it has read its arguments."""
    if os.environ.get("SGLANG_DISAGG_STAGING_BUFFER", "").lower() in _TRUE:
        return "SGLANG_DISAGG_STAGING_BUFFER: staging buffers belong to one transport"
    if os.environ.get("SGLANG_RUST_SERVER", "").lower() in _TRUE:
        return "SGLANG_RUST_SERVER: its built-in registry serves one transport"
    return None


def arguments_refuse(arguments: Any) -> str | None:
    """The same of SGLang's `ServerArgs`; an argument that it does not have is one that it cannot use."""
    backend = getattr(arguments, "disaggregation_transfer_backend", None)
    if backend != "mooncake":
        return f"started for {backend}: start it with --disaggregation-transfer-backend mooncake"
    for name, wanted, why in _ATTRIBUTES:
        value = getattr(arguments, name, wanted)
        if value is not None and value != wanted:
            return why
    return None
