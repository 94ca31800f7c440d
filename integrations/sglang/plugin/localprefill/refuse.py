"""What local prefill does not serve: workers it was not built for, and requests that need more than it has.

Each entry is there because the hooks would do the wrong thing, or because nobody has seen them do it right.
"""

from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]

WORKERS: tuple[tuple[str, Check], ...] = (
    ("fake transfer backend", lambda s: s.transfer_backend.value == "fake"),
    ("no generation model", lambda s: not s.is_generation),
    ("speculative decoding", lambda s: not s.spec_algorithm.is_none()),
    ("pipeline parallelism", lambda s: s.server_args.pp_size > 1),
    ("tensor parallelism", lambda s: s.server_args.tp_size > 1),
    ("data parallelism", lambda s: s.server_args.dp_size > 1),
    ("DP attention", lambda s: bool(s.require_mlp_sync or s.server_args.enable_dp_attention)),
    ("context parallelism", lambda s: s.server_args.attn_cp_size > 1),
    ("MoE all-to-all", lambda s: s.server_args.moe_a2a_backend not in (None, "none")),
    ("HiSparse", lambda s: bool(s.enable_hisparse)),
    (
        "sliding window attention",
        lambda s: bool(s.is_hybrid_swa) or s.disagg_decode_prealloc_queue._uses_swa_reservation(),
    ),
    ("Mamba or linear attention", lambda s: s.tree_cache.supports_mamba()),
    (
        "hierarchical cache",
        lambda s: bool(
            s.enable_hierarchical_cache
            or s.enable_decode_hicache
            or s.enable_lmcache
            or s.enable_unified_cache_external_linker
        ),
    ),
    ("unified memory", lambda s: bool(s.enable_unified_memory)),
    ("KV offload", lambda s: s.decode_offload_manager is not None),
    ("LoRA", lambda s: bool(s.enable_lora)),
    ("diffusion language model", lambda s: s.dllm_config is not None),
    ("multimodal model", lambda s: bool(s.model_config.is_multimodal)),
    ("priority preemption", lambda s: bool(s.enable_priority_preemption)),
    (
        "host receive",
        lambda s: s.server_args.disaggregation_decode_host_receive_threshold < 1,
    ),
    (
        "late decode allocation",
        lambda s: s.server_args.disaggregation_decode_allocation_policy != "early",
    ),
    ("role switch", lambda s: bool(s.server_args.enable_pd_role_switch)),
    ("mixed chunks", lambda s: bool(s.is_mixed_chunk)),
    ("session radix cache", lambda s: bool(s.enable_session_radix_cache)),
    ("Rust server", lambda s: s.rust_server is not None or s._hosts_rust_server()),
    ("deterministic inference", lambda s: s.truncation_align_size is not None),
    ("dynamic chunk sizes", lambda s: s.dynamic_chunk_sizer is not None),
    (
        "delayed prefill",
        lambda s: s.prefill_delayer is not None or s.min_free_slots_delayer is not None,
    ),
)

REQUESTS: tuple[tuple[str, Check], ...] = (
    (
        "empty prompts",
        lambda r: r.input_embeds is None and not len(r.input_ids or ()),
    ),  # they end SGLang's scheduler
    ("beam search", lambda r: (getattr(r.sampling_params, "beam_width", None) or 1) > 1),
    ("sessions", lambda r: r.session_params is not None or r.session_id is not None),
    ("multimodal input", lambda r: r.mm_inputs is not None),
    ("input embeddings", lambda r: r.input_embeds is not None or r.positional_embed_overrides is not None),
    ("LoRA", lambda r: r.lora_id is not None),
)


def unsupported(scheduler: Any) -> str | None:
    """Why this worker cannot prefill locally, or None. A missing attribute raises AttributeError."""
    if scheduler.disaggregation_mode.value != "decode":
        return "not a decode worker"
    found = [name for name, applies in WORKERS if applies(scheduler)]
    return f"not with {', '.join(found)}" if found else None


def unservable(received: Any) -> str | None:
    """Why this request (SGLang's TokenizedGenerateReqInput) cannot be served locally, or None."""
    found = [name for name, applies in REQUESTS if applies(received)]
    return f"local prefill does not do {', '.join(found)}" if found else None
