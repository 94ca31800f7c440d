"""A tiny Llama with random, fixed-seed weights and a byte-level tokenizer: real inference, no download.

Every byte is one token, so a prompt of n ASCII characters has n tokens.
"""

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

_SPECIAL = ("<s>", "</s>", "<pad>")
_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


@dataclass(frozen=True, slots=True)
class TinyModel:
    """The shape of the checkpoint; the same fields always give the same bytes."""

    vocab: int = 4096
    layers: int = 4
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    feed_forward: int = 512
    max_tokens: int = 16384
    seed: int = 1234

    @property
    def name(self) -> str:
        """A folder name that changes with every field."""
        digest = sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return f"tiny-llama-{digest[:12]}"


def cached_model(shape: TinyModel | None = None) -> Path:
    """Return the folder of the checkpoint, made on first use under $XDG_CACHE_HOME/kvferry/models.

    Raises ImportError when tokenizers or safetensors (both come with SGLang) are missing, OSError when the
    cache cannot be written.
    """
    shape = shape or TinyModel()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvferry" / "models"
    final = base / shape.name
    if final.is_dir():
        return final
    base.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{shape.name}-", dir=base))
    try:
        make_model(draft, shape)
        draft.chmod(0o755)
        try:
            draft.rename(final)
        except OSError:
            if not final.is_dir():  # else another process was faster, with the same bytes
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return final


def make_model(folder: Path, shape: TinyModel) -> None:
    """Write config, tokenizer and weights of `shape` into `folder`, which exists."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*letters, *_SPECIAL])}
    vocab |= {f" w{index}": index for index in range(len(vocab), shape.vocab)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))

    ends = {"bos_token_id": vocab["<s>"], "eos_token_id": vocab["</s>"]}
    _write(folder / "tokenizer_config.json", _tokenizer_config(shape))
    _write(folder / "config.json", _config(shape) | ends | {"pad_token_id": vocab["<pad>"]})
    _write(folder / "generation_config.json", ends)
    save_file(_weights(shape), str(folder / "model.safetensors"), metadata={"format": "pt"})


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _tokenizer_config(shape: TinyModel) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": shape.max_tokens,
        "clean_up_tokenization_spaces": False,
        "chat_template": _TEMPLATE,
    }


def _config(shape: TinyModel) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "initializer_range": 0.02,
    }


def _weights(shape: TinyModel) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    random = np.random.default_rng(shape.seed)

    def normal(rows: int, columns: int, gain: float = 1.0) -> np.ndarray[Any, np.dtype[np.float32]]:
        scale = np.float32(gain * columns**-0.5)
        return random.standard_normal((rows, columns), dtype=np.float32) * scale

    ones = np.ones(shape.hidden, np.float32)
    query, key_value = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = {
        "model.embed_tokens.weight": normal(shape.vocab, shape.hidden, shape.hidden**0.5),
        "model.norm.weight": ones,
        "lm_head.weight": normal(shape.vocab, shape.hidden),
    }
    for index in range(shape.layers):
        layer = f"model.layers.{index}."
        # Queries and keys are doubled so that attention is peaked and the answer depends on the whole prompt.
        weights |= {
            layer + "self_attn.q_proj.weight": normal(query, shape.hidden, 2.0),
            layer + "self_attn.k_proj.weight": normal(key_value, shape.hidden, 2.0),
            layer + "self_attn.v_proj.weight": normal(key_value, shape.hidden),
            layer + "self_attn.o_proj.weight": normal(shape.hidden, query),
            layer + "mlp.gate_proj.weight": normal(shape.feed_forward, shape.hidden),
            layer + "mlp.up_proj.weight": normal(shape.feed_forward, shape.hidden),
            layer + "mlp.down_proj.weight": normal(shape.hidden, shape.feed_forward),
            layer + "input_layernorm.weight": ones,
            layer + "post_attention_layernorm.weight": ones,
        }
    return weights
