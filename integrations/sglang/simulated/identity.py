"""What a simulated worker tells of itself: GET /server_info, /model_info, /v1/models, /v1/loads, /route."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from kvferry.integrations.sglang.plugin_info import INFO_KEY
from kvferry.integrations.sglang.simulated.options import SimulationOptions
from kvferry.models.model_catalogue import UnknownModelError, find_model
from kvferry.models.simulator.engine import Engine
from kvferry.models.simulator.spec import EngineSpec
from kvferry.policy.kvshape import KVShape
from kvferry.policy.worker import Role

VERSION = "0.5.23"  # of the SGLang whose interface this is
DTYPE = "bfloat16"
_MODES = {Role.COLOCATED: "null", Role.PREFILL: "prefill", Role.DECODE: "decode"}


@dataclass(frozen=True, slots=True)
class Identity:
    """`instance`: of what stands for kvferry's plugin, on decode workers that may prefill and wherever
    telemetry is sent."""

    spec: EngineSpec
    options: SimulationOptions
    port: int
    bootstrap_port: int | None
    transport: str
    rdma: bool
    instance: str

    def server_info(self) -> dict[str, Any]:
        spec, shape = self.spec, shape_of(self.spec)
        state: dict[str, Any] = {
            "effective_max_running_requests_per_dp": spec.max_running_requests,
            "memory_usage": {"kvcache": _kv_gb(spec, shape), "token_capacity": spec.max_total_tokens},
            "dtype": DTYPE,
        }
        if spec.local_prefill or self.options.redis:
            state[INFO_KEY] = {
                "version": metadata.version("kvferry"),
                "instance": self.instance,
                "features": self._features(),
            }
        return {
            "model_path": spec.model,
            "served_model_name": spec.model,
            "context_length": self.options.context_tokens,
            "dtype": DTYPE,
            "quantization": None,
            "kv_cache_dtype": "auto",
            "max_running_requests": spec.max_running_requests,
            "max_total_tokens": spec.max_total_tokens,
            "chunked_prefill_size": spec.chunk_tokens,
            "page_size": 1,
            "stream_interval": self.options.stream_interval,
            "disable_radix_cache": not spec.prefix_cache,
            "tp_size": spec.tp,
            "pp_size": 1,
            "dp_size": 1,
            "attn_cp_size": 1,
            "dcp_size": 1,
            "enable_dp_attention": False,
            "enable_page_major_kv_layout": False,
            "device": "simulated",
            "host": self.options.host,
            "port": self.port,
            "disaggregation_mode": _MODES[spec.role],
            "disaggregation_transfer_backend": self.transport,
            "disaggregation_bootstrap_port": self.bootstrap_port or 8998,
            "disaggregation_ib_device": "simulated" if self.rdma else None,
            "disaggregation_decode_enable_radix_cache": spec.role is Role.DECODE and spec.prefix_cache,
            "max_total_num_tokens": spec.max_total_tokens,
            "max_req_input_len": min(self.options.context_tokens, spec.max_total_tokens) - 6,
            "version": VERSION,
            "internal_states": [state],
            "status": "ready",
            "simulated": {"worker": spec.id, "gpu": spec.gpu, "time_scale": self.options.time_scale},
        }

    def _features(self) -> dict[str, Any]:
        local, told = self.spec.local_prefill, bool(self.options.redis)
        return {
            "local_prefill": {"on": True, "chunk_tokens": self.spec.chunk_tokens}
            if local
            else {"on": False, "why": "switched off"},
            "telemetry": {"on": True} if told else {"on": False, "why": "simulated without --redis"},
        }

    def model_info(self) -> dict[str, Any]:
        return {
            "model_path": self.spec.model,
            "served_model_name": self.spec.model,
            "tokenizer_path": self.spec.model,
            "is_generation": True,
            "weight_version": "default",
            "disaggregation_mode": _MODES[self.spec.role],
        }

    def models(self) -> dict[str, Any]:
        card = {
            "id": self.spec.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": self.spec.model,
            "parent": None,
            "max_model_len": self.options.context_tokens,
        }
        return {"object": "list", "data": [card]}

    def route(self) -> dict[str, Any]:
        """Of the bootstrap server, asked for everything at once."""
        return {
            "attn_tp_size": self.spec.tp,
            "attn_cp_size": 1,
            "dp_size": 1,
            "pp_size": 1,
            "page_size": 1,
            "kv_cache_dtype": DTYPE,
            "follow_bootstrap_room": True,
            "prefill_http_port": self.port,
        }

    def loads(self, engine: Engine, bootstrap: int, bootstrap_tokens: int) -> dict[str, Any]:
        """`bootstrap`: prefill halves, with so many prompt tokens, that wait for their decode half.

        Seconds are real ones: a simulation that runs faster looks like faster workers.
        """
        spec, rank = self.spec, engine.loads()
        _rescale(rank, self.options.time_scale)
        waiting = rank["num_waiting_reqs"]
        disagg = rank["disaggregation"]
        disagg |= {"kv_transfer_speed_gb_s": 0.0, "kv_transfer_latency_ms": 0.0}
        disagg["prefill_bootstrap_queue_reqs"] += bootstrap
        preparing = disagg["decode_prealloc_queue_reqs"] + disagg["decode_transfer_queue_reqs"]
        rank["num_waiting_reqs"] += bootstrap + preparing
        rank["num_total_tokens"] += bootstrap_tokens
        rank |= {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_active_tokens": rank["num_total_tokens"],
            "num_prealloc_ready_tokens": 0,
            "token_usage": rank["num_used_tokens"] / spec.max_total_tokens,
            "gen_throughput": 0.0,
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "memory": {
                "weight_gb": 0.0,
                "kv_cache_gb": _kv_gb(spec, shape_of(spec)),
                "graph_gb": 0.0,
                "token_capacity": spec.max_total_tokens,
            },
            "queues": {
                "waiting": waiting,
                "grammar": 0,
                "paused": 0,
                "retracted": disagg["decode_retracted_queue_reqs"],
                "prealloc_ready": 0,
            },
        }
        return {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": VERSION,
            "accelerator": f"NVIDIA {spec.gpu.upper()}",
            "num_accelerators": spec.tp,
            "loads": [rank],
        }


def shape_of(spec: EngineSpec) -> KVShape | None:
    """None where the catalogue does not know the model."""
    try:
        return find_model(spec.model).shape
    except UnknownModelError:
        return None


def _kv_gb(spec: EngineSpec, shape: KVShape | None) -> float:
    """GiB of KV memory on each of the `tp` GPUs."""
    if shape is None:
        return 0.0
    return shape.kv_bytes(spec.max_total_tokens, DTYPE, spec.tp) / spec.tp / (1 << 30)


def _rescale(rank: dict[str, Any], scale: float) -> None:
    if scale == 1.0:
        return
    rank["total_prefill_busy_us"] /= scale
    moments: Mapping[int, float] = dict(enumerate(rank["decode_moments"] or ()))
    rank["decode_moments"] = [value / scale if at in (2, 4) else value for at, value in moments.items()]
