"""Which layers of a Hugging Face config keep all their KV, a window of it, or a fixed state."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class LayerKind(StrEnum):
    FULL = "full"
    WINDOW = "window"
    LINEAR = "linear"  # a state of fixed size, or nothing, instead of KV


_BY_NAME = {
    "full_attention": LayerKind.FULL,
    "attention": LayerKind.FULL,
    "hybrid": LayerKind.FULL,
    "full": LayerKind.FULL,
    "*": LayerKind.FULL,
    "sliding_attention": LayerKind.WINDOW,
    "chunked_attention": LayerKind.WINDOW,
    "local_attention": LayerKind.WINDOW,
} | dict.fromkeys(
    ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "mlp", "moe", "M", "-", "E"),
    LayerKind.LINEAR,
)


def layer_kinds(text: Mapping[str, Any], total: int) -> list[LayerKind]:
    """The kind of each of `total` layers, from whichever of the field's spellings the config uses.

    An explicit list wins over a period, a period over `sliding_window` alone, which binds every layer
    (Mistral v0.1) or those from `max_window_layers` on (Qwen2). ValueError when a list is too short.
    """
    listed = _listed(text)
    if listed is not None:
        if len(listed) < total:
            raise ValueError(f"the list of layer types has {len(listed)} entries for {total} layers")
        return listed[:total]
    if linear := text.get("linear_attn_config"):  # Kimi Linear counts its full layers from 1
        full = set(linear.get("full_attn_layers", ()))
        return [LayerKind.FULL if i + 1 in full else LayerKind.LINEAR for i in range(total)]
    if period := text.get("full_attention_interval"):
        return [LayerKind.FULL if (i + 1) % period == 0 else LayerKind.LINEAR for i in range(total)]
    if period := text.get("attn_layer_period"):  # Jamba
        offset = text.get("attn_layer_offset", 0)
        return [LayerKind.FULL if i % period == offset else LayerKind.LINEAR for i in range(total)]
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return [LayerKind.FULL] * total
    if period := text.get("sliding_window_pattern") or text.get("_sliding_window_pattern"):
        return [LayerKind.FULL if (i + 1) % period == 0 else LayerKind.WINDOW for i in range(total)]
    if text.get("use_sliding_window"):
        first = min(int(text.get("max_window_layers") or 0), total)
        return [LayerKind.FULL] * first + [LayerKind.WINDOW] * (total - first)
    return [LayerKind.WINDOW] * total


def _listed(text: Mapping[str, Any]) -> list[LayerKind] | None:
    for key in ("layer_types", "layers_block_type", "hybrid_override_pattern"):
        if names := text.get(key):
            unknown = sorted({str(name) for name in names} - set(_BY_NAME))
            if unknown:
                raise ValueError(f"{key!r} has layer types this version does not know: {', '.join(unknown)}")
            return [_BY_NAME[str(name)] for name in names]
    if flags := text.get("attn_type_list"):  # MiniMax: 1 is softmax attention, 0 lightning attention
        return [LayerKind.FULL if flag == 1 else LayerKind.LINEAR for flag in flags]
    return None
