"""Every worker and every request that local prefill refuses, each by the reason it gives."""

from array import array
from types import SimpleNamespace as Some
from typing import Any

import pytest

from kvferry.integrations.sglang.plugin.localprefill.refuse import REQUESTS, WORKERS, unservable, unsupported


def worker() -> Some:
    """All that is asked of a scheduler, as on a decode worker that is not refused."""
    return Some(
        disaggregation_mode=Some(value="decode"),
        transfer_backend=Some(value="mooncake"),
        is_generation=True,
        spec_algorithm=Some(is_none=lambda: True),
        server_args=Some(
            pp_size=1,
            tp_size=1,
            dp_size=1,
            attn_cp_size=1,
            enable_dp_attention=False,
            moe_a2a_backend="none",
            disaggregation_decode_host_receive_threshold=1,
            disaggregation_decode_allocation_policy="early",
            enable_pd_role_switch=False,
        ),
        require_mlp_sync=False,
        enable_hisparse=False,
        is_hybrid_swa=False,
        disagg_decode_prealloc_queue=Some(_uses_swa_reservation=lambda: False),
        tree_cache=Some(supports_mamba=lambda: False),
        enable_hierarchical_cache=False,
        enable_decode_hicache=False,
        enable_lmcache=False,
        enable_unified_cache_external_linker=False,
        enable_unified_memory=False,
        decode_offload_manager=None,
        enable_lora=False,
        dllm_config=None,
        model_config=Some(is_multimodal=False),
        enable_priority_preemption=False,
        is_mixed_chunk=False,
        enable_session_radix_cache=False,
        rust_server=None,
        _hosts_rust_server=lambda: False,
        truncation_align_size=None,
        dynamic_chunk_sizer=None,
        prefill_delayer=None,
        min_free_slots_delayer=None,
    )


WRONG_WORKERS: list[tuple[str, str, Any]] = [
    ("fake transfer backend", "transfer_backend", Some(value="fake")),
    ("no generation model", "is_generation", False),
    ("speculative decoding", "spec_algorithm", Some(is_none=lambda: False)),
    ("pipeline parallelism", "server_args.pp_size", 2),
    ("tensor parallelism", "server_args.tp_size", 2),
    ("data parallelism", "server_args.dp_size", 2),
    ("DP attention", "require_mlp_sync", True),
    ("DP attention", "server_args.enable_dp_attention", True),
    ("context parallelism", "server_args.attn_cp_size", 2),
    ("MoE all-to-all", "server_args.moe_a2a_backend", "deepep"),
    ("HiSparse", "enable_hisparse", True),
    ("sliding window attention", "is_hybrid_swa", True),
    ("sliding window attention", "disagg_decode_prealloc_queue", Some(_uses_swa_reservation=lambda: True)),
    ("Mamba or linear attention", "tree_cache", Some(supports_mamba=lambda: True)),
    ("hierarchical cache", "enable_hierarchical_cache", True),
    ("hierarchical cache", "enable_decode_hicache", True),
    ("hierarchical cache", "enable_lmcache", True),
    ("hierarchical cache", "enable_unified_cache_external_linker", True),
    ("unified memory", "enable_unified_memory", True),
    ("KV offload", "decode_offload_manager", object()),
    ("LoRA", "enable_lora", True),
    ("diffusion language model", "dllm_config", object()),
    ("multimodal model", "model_config", Some(is_multimodal=True)),
    ("priority preemption", "enable_priority_preemption", True),
    ("host receive", "server_args.disaggregation_decode_host_receive_threshold", 0.5),
    ("late decode allocation", "server_args.disaggregation_decode_allocation_policy", "prefill_complete"),
    ("role switch", "server_args.enable_pd_role_switch", True),
    ("mixed chunks", "is_mixed_chunk", True),
    ("session radix cache", "enable_session_radix_cache", True),
    ("Rust server", "rust_server", object()),
    ("Rust server", "_hosts_rust_server", lambda: True),
    ("deterministic inference", "truncation_align_size", 64),
    ("dynamic chunk sizes", "dynamic_chunk_sizer", object()),
    ("delayed prefill", "prefill_delayer", object()),
    ("delayed prefill", "min_free_slots_delayer", object()),
]


def test_an_ordinary_decode_worker_is_not_refused() -> None:
    assert unsupported(worker()) is None


@pytest.mark.parametrize("mode", ["null", "prefill"])
def test_other_roles_are(mode: str) -> None:
    given = worker()
    given.disaggregation_mode = Some(value=mode)
    assert unsupported(given) == "not a decode worker"


@pytest.mark.parametrize(("why", "path", "value"), WRONG_WORKERS)
def test_a_worker_is_refused_with_its_reason(why: str, path: str, value: Any) -> None:
    given = worker()
    *parents, name = path.split(".")
    holder = given
    for parent in parents:
        holder = getattr(holder, parent)
    setattr(holder, name, value)
    assert unsupported(given) == f"not with {why}"


def test_all_reasons_are_told_at_once() -> None:
    given = worker()
    given.enable_lora = given.enable_hisparse = True
    assert unsupported(given) == "not with HiSparse, LoRA"


def test_the_table_above_is_complete() -> None:
    assert {why for why, _, _ in WRONG_WORKERS} == {why for why, _ in WORKERS}
    assert {why for why, _, _ in WRONG_REQUESTS} == {why for why, _ in REQUESTS}


def request() -> Some:
    return Some(
        input_ids=array("q", [1]),
        sampling_params=Some(beam_width=None),
        session_params=None,
        session_id=None,
        mm_inputs=None,
        input_embeds=None,
        positional_embed_overrides=None,
        lora_id=None,
    )


WRONG_REQUESTS: list[tuple[str, str, Any]] = [
    ("empty prompts", "input_ids", array("q")),
    ("empty prompts", "input_ids", []),
    ("empty prompts", "input_ids", None),
    ("beam search", "sampling_params", Some(beam_width=4)),
    ("sessions", "session_params", object()),
    ("sessions", "session_id", "s"),
    ("multimodal input", "mm_inputs", object()),
    ("input embeddings", "input_embeds", [[0.0]]),
    ("input embeddings", "positional_embed_overrides", object()),
    ("LoRA", "lora_id", "a"),
]


def test_an_ordinary_request_is_not_refused() -> None:
    assert unservable(request()) is None


@pytest.mark.parametrize(("why", "name", "value"), WRONG_REQUESTS)
def test_a_request_is_refused_with_its_reason(why: str, name: str, value: Any) -> None:
    given = request()
    setattr(given, name, value)
    assert unservable(given) == f"local prefill does not do {why}"
