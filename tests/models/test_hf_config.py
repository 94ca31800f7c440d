"""Shapes read from configs of every family, against the published numbers."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvferry.models.hf_config import load_config, shape_from_config

QWEN3_32B = {
    "model_type": "qwen3",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 64,
}
PATTERN5 = ["sliding_attention"] * 5 + ["full_attention"]


@pytest.mark.parametrize(
    ("config", "attention", "per_token", "window"),
    [
        (QWEN3_32B, "GQA", 262_144, (0, 0)),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768}, "MHA", 12 * 2 * 768 * 2, (0, 0)),
        (
            {
                "num_hidden_layers": 32,
                "num_attention_heads": 71,
                "hidden_size": 4544,
                "multi_query": True,
                "new_decoder_architecture": False,
                "num_kv_heads": 71,
            },
            "MQA",
            32 * 2 * 64 * 2,
            (0, 0),
        ),
        (
            {
                "num_hidden_layers": 60,
                "num_attention_heads": 128,
                "hidden_size": 8192,
                "multi_query": True,
                "new_decoder_architecture": True,
                "num_kv_heads": 8,
            },
            "GQA",
            60 * 2 * 8 * 64 * 2,
            (0, 0),
        ),
        (
            {
                "num_hidden_layers": 61,
                "num_attention_heads": 128,
                "num_key_value_heads": 128,
                "hidden_size": 7168,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
            },
            "MLA",
            70_272,
            (0, 0),
        ),
        (
            {"num_layers": 28, "num_attention_heads": 32, "kv_channels": 128, "multi_query_group_num": 2},
            "GQA",
            28 * 2 * 2 * 128 * 2,
            (0, 0),
        ),
        (
            {"n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8}},
            "GQA",
            40 * 2 * 8 * 128 * 2,
            (0, 0),
        ),
        (  # Mistral 7B v0.1: every layer in the window
            {**QWEN3_32B, "use_sliding_window": None, "sliding_window": 4096},
            "GQA, 0 full + 64 sliding(4096)",
            0,
            (4096, 64),
        ),
        (  # Qwen2 with windows on
            {**QWEN3_32B, "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 60},
            "GQA, 60 full + 4 sliding(4096)",
            60 * 4096,
            (4096, 4),
        ),
        (  # gpt-oss-120b
            {
                "num_hidden_layers": 36,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "head_dim": 64,
                "sliding_window": 128,
                "layer_types": ["sliding_attention", "full_attention"] * 18,
            },
            "GQA, 18 full + 18 sliding(128)",
            36_864,
            (128, 18),
        ),
        (  # Gemma 3 27B as published: heads in text_config, no pattern
            {
                "text_config": {
                    "model_type": "gemma3_text",
                    "num_hidden_layers": 62,
                    "num_attention_heads": 32,
                    "num_key_value_heads": 16,
                    "head_dim": 128,
                    "sliding_window": 1024,
                }
            },
            "GQA, 10 full + 52 sliding(1024)",
            81_920,
            (1024, 52),
        ),
        (  # Gemma 4: other heads in the full layers
            {
                "text_config": {
                    "num_hidden_layers": 30,
                    "num_attention_heads": 16,
                    "num_key_value_heads": 8,
                    "head_dim": 256,
                    "global_head_dim": 512,
                    "num_global_key_value_heads": 2,
                    "attention_k_eq_v": True,
                    "sliding_window": 1024,
                    "layer_types": PATTERN5 * 5,
                }
            },
            "GQA, 5 full + 25 sliding(1024)",
            20_480,
            (1024, 25),
        ),
    ],
)
def test_families(config: dict[str, Any], attention: str, per_token: int, window: tuple[int, int]) -> None:
    shape = shape_from_config(config)
    assert shape.attention == attention
    assert shape.bytes_per_token("bfloat16") == per_token
    assert (shape.window_tokens, shape.window_layers) == window


def test_gemma4_window_layers_keep_their_own_heads() -> None:
    text = {
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": 2,
        "sliding_window": 1024,
        "layer_types": PATTERN5 * 5,
    }
    assert shape_from_config(text).kv_bytes(8192, "bfloat16") == 377_487_360


HYBRID = {"num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 256}


@pytest.mark.parametrize(
    "layers",
    [
        {"full_attention_interval": 4},
        {"layer_types": ["linear_attention"] * 3 * 15 + ["full_attention"] * 15},
        {"attn_type_list": [0, 0, 0, 1] * 15},
        {"hybrid_override_pattern": "M-M*" * 15},
        {"attn_layer_period": 4, "attn_layer_offset": 3},
        {"linear_attn_config": {"full_attn_layers": list(range(4, 61, 4))}},
    ],
)
def test_hybrids_keep_kv_in_their_full_layers_only(layers: dict[str, Any]) -> None:
    shape = shape_from_config({**HYBRID, **layers})
    assert (shape.layers, shape.model_layers, shape.fixed_bytes) == (15, 60, 0)
    assert shape.attention == "hybrid 15 full GQA + 45 linear"
    assert shape.bytes_per_token("bfloat16") == 30_720


def test_a_gated_delta_state_is_counted() -> None:
    sizes = {"key_head_dim": 128, "value_head_dim": 128, "num_key_heads": 16, "num_value_heads": 32}
    keys = {f"linear_{key}": value for key, value in {**sizes, "conv_kernel_dim": 4}.items()}
    shape = shape_from_config({**HYBRID, "full_attention_interval": 4, **keys})
    tail, matrix = (2 * 16 * 128 + 32 * 128) * 3 * 2, 32 * 128 * 128 * 4
    assert shape.fixed_bytes == 45 * (tail + matrix)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "num_hidden_layers"),
        ({"num_hidden_layers": 4}, "num_attention_heads"),
        ({"num_hidden_layers": 4, "num_attention_heads": 8}, "hidden_size"),
        ({"num_hidden_layers": "4"}, "'num_hidden_layers' is '4', not a whole number"),
        ({**QWEN3_32B, "layer_types": ["full_attention"]}, "1 entries for 64 layers"),
        ({**QWEN3_32B, "layer_types": ["quantum"] * 64}, "quantum"),
        ({**QWEN3_32B, "layer_types": ["sliding_attention"] * 64}, "'sliding_window' is missing"),
        ({**QWEN3_32B, "kv_lora_rank": 512}, "'qk_rope_head_dim' is not given"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
    ],
)
def test_what_is_missing_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape_from_config(config, name="mine")


def test_load_config_reads_a_file_or_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN3_32B))
    assert load_config(file) == load_config(tmp_path) == QWEN3_32B


@pytest.mark.parametrize(
    ("content", "message"), [(b"{\n oops", "line 2: not JSON"), (b"[1]", "list"), (b"\xff", "UTF-8")]
)
def test_a_broken_config_names_the_file(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load_config(file)
    assert str(file) in str(caught.value)
