"""KV shapes read from a Hugging Face `config.json`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvferry.models.layer_kinds import LayerKind, layer_kinds
from kvferry.policy.kvshape import KVShape

Config = Mapping[str, Any]

# What a config leaves to its class: published files omit these keys (read from transformers' classes).
CLASS_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma2": {"head_dim": 256, "sliding_window_pattern": 2},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window_pattern": 6,
    },
    "cohere2": {"sliding_window_pattern": 4},
}
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "kv_n_heads")
_HEAD_DIM = ("head_dim", "kv_channels", "attention_head_size")
_HIDDEN = ("hidden_size", "n_embd", "d_model")


def load_config(path: Path) -> Config:
    """Read a config.json, or the one in a folder. ValueError says what is wrong with which file."""
    file = path / "config.json" if path.is_dir() else path
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"no such file: {file}") from None
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}, line {error.lineno}: not JSON ({error.msg})") from None
    if not isinstance(loaded, dict):
        raise ValueError(f"{file} holds a JSON {type(loaded).__name__}, not an object")
    return loaded


def shape_from_config(config: Config, name: str = "") -> KVShape:
    """KV shape of any decoder config: MHA, GQA, MQA, MLA, windows, linear attention, mixed head sizes.

    Raises ValueError naming the key that is missing or wrong. A fixed state is counted for gated delta
    layers (Qwen3-Next's keys, at SGLang's dtypes); other fixed states are unknown and count 0.
    """
    text = _text_part(config)
    label = name or str(config.get("_name_or_path") or config.get("model_type") or "config.json")
    try:
        return _shape(text, label)
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None


def _shape(text: Config, name: str) -> KVShape:
    if text.get("is_encoder_decoder"):
        raise ValueError("encoder-decoder models keep no prompt KV that could be moved")
    total = _need(text, _LAYERS)
    kinds = layer_kinds(text, total)
    kept = kinds[: total - (_whole(text, "num_kv_shared_layers") or 0)]  # the last layers reuse earlier KV
    full, window, linear = (kept.count(kind) for kind in LayerKind)
    window_tokens = _window_tokens(text)
    if window and not window_tokens:
        raise ValueError(f"{window} layers use a sliding window, but 'sliding_window' is missing")
    mla = bool(text.get("kv_lora_rank"))
    if mla:
        heads, dim = 1, _need(text, ("kv_lora_rank",)) + _need(text, ("qk_rope_head_dim",))
        kind = "MLA + DSA indexer" if text.get("index_topk") else "MLA"
    else:
        heads, dim, kind = _heads(text)
    full_heads, full_dim = heads, dim
    if window and full:  # Gemma 4 gives its full layers their own heads
        full_heads = _whole(text, "num_global_key_value_heads") or heads
        full_dim = _whole(text, "global_head_dim") or dim
    return KVShape(
        layers=full + window,
        kv_heads=full_heads,
        head_dim=full_dim,
        name=name,
        attention=_label(kind, full, window, linear, window_tokens),
        mla=mla,
        window_tokens=window_tokens if window else 0,
        window_layers=window,
        window_kv_heads=heads if window else 0,
        window_head_dim=dim if window else 0,
        fixed_bytes=linear * _gated_delta_bytes(text),
        model_layers=total,
    )


def _text_part(config: Config) -> Config:
    text: Config = config
    while inner := next((text[key] for key in _TEXT_PARTS if isinstance(text.get(key), Mapping)), None):
        text = {**{key: value for key, value in text.items() if key not in _TEXT_PARTS}, **inner}
    attention = text.get("attn_config")
    merged = {**attention, **text} if isinstance(attention, Mapping) else dict(text)
    return {**CLASS_DEFAULTS.get(str(merged.get("model_type")), {}), **merged}


def _heads(text: Config) -> tuple[int, int, str]:
    """KV heads, head dim and the kind of attention."""
    heads = _first(text, _HEADS)
    if text.get("multi_query") and not text.get("new_decoder_architecture"):  # Falcon 7B, StarCoder
        kv_heads: int | None = 1
    else:
        kv_heads = _first(text, _KV_HEADS) or heads
    if kv_heads is None:
        raise ValueError(f"none of {_names(_HEADS + _KV_HEADS)} is given")
    dim = _first(text, _HEAD_DIM)
    if dim is None:
        if heads is None:
            raise ValueError(f"none of {_names(_HEAD_DIM + _HEADS)} is given")
        dim = _need(text, _HIDDEN) // heads
    kind = "MQA" if kv_heads == 1 and heads != 1 else "MHA" if kv_heads == heads else "GQA"
    return kv_heads, dim, kind


def _window_tokens(text: Config) -> int:
    return next(
        (w for key in ("sliding_window", "attention_chunk_size") if (w := _whole(text, key))),
        0,
    )


def _gated_delta_bytes(text: Config) -> int:
    """State of one gated delta layer: a bf16 convolution tail and an fp32 matrix per value head."""
    keys = ("key_head_dim", "value_head_dim", "num_key_heads", "num_value_heads", "conv_kernel_dim")
    sizes = [_whole(text, f"linear_{key}") for key in keys]
    if any(size is None for size in sizes):
        return 0
    key_dim, value_dim, key_heads, value_heads, kernel = (size or 0 for size in sizes)
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return channels * (kernel - 1) * 2 + value_heads * key_dim * value_dim * 4


def _label(kind: str, full: int, window: int, linear: int, window_tokens: int) -> str:
    if linear:
        windowed = f" + {window} sliding({window_tokens})" if window else ""
        return f"hybrid {full} full {kind}{windowed} + {linear} linear"
    if window:
        return f"{kind}, {full} full + {window} sliding({window_tokens})"
    return kind


def _whole(text: Config, key: str) -> int | None:
    value = text.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{key!r} is {value!r}, not a whole number")
    return value


def _first(text: Config, keys: Iterable[str]) -> int | None:
    return next((value for key in keys if (value := _whole(text, key))), None)


def _need(text: Config, keys: tuple[str, ...]) -> int:
    value = _first(text, keys)
    if value is None:
        raise ValueError(f"none of {_names(keys)} is given" if len(keys) > 1 else f"{keys[0]!r} is not given")
    return value


def _names(keys: Iterable[str]) -> str:
    return ", ".join(repr(key) for key in keys)
