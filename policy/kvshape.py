"""How many bytes a model's KV cache takes, and how many of them a move carries."""

import math
from dataclasses import dataclass

# Bytes per stored element, under SGLang's and Hugging Face's names. fp4 stores one uint8 scale for
# every 16 elements next to them: 1/2 + 1/16.
ELEMENT_BYTES: dict[str, float] = {
    "float32": 4.0,
    "fp32": 4.0,
    "bfloat16": 2.0,
    "bf16": 2.0,
    "float16": 2.0,
    "fp16": 2.0,
    "half": 2.0,
    "fp8_e4m3": 1.0,
    "fp8_e4m3fn": 1.0,
    "fp8_e5m2": 1.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4_e2m1": 0.5625,
}


def element_bytes(dtype: str) -> float:
    """Bytes per KV element of `dtype` ('torch.' in front is accepted); ValueError naming the known ones."""
    size = ELEMENT_BYTES.get(dtype.lower().removeprefix("torch."))
    if size is None:
        raise ValueError(f"unknown KV dtype {dtype!r}: known are {', '.join(ELEMENT_BYTES)}")
    return size


@dataclass(frozen=True, slots=True)
class KVShape:
    """The KV cache of one model. Every count is per model, not per rank.

    layers: layers that keep KV (full attention + window), not those with a fixed state only.
    kv_heads, head_dim: of the layers that grow with the prompt. Under MLA one latent vector is kept
    per token and layer instead of K and V: kv_heads is 1 and head_dim = kv_lora_rank + qk_rope_head_dim.
    window_layers of `layers` keep at most `window_tokens` tokens; 0 in window_kv_heads or
    window_head_dim means "as the full layers". fixed_bytes: state per sequence that does not grow
    (linear attention, Mamba); 0 when there is none or its size is unknown. model_layers: all layers.

    With `tp` ranks, heads are replicated when there are fewer than ranks, and an MLA latent is kept on
    every rank (pass the attention TP: 1 under DP attention). `tp=1` gives what is stored once.
    Sizes: layers * elements * max(kv_heads, tp) * bytes per element. Source of the replication factor:
    a measured Qwen3-235B-A22B TP8 move (4 KV heads) was exactly twice the size stored once.
    """

    layers: int
    kv_heads: int
    head_dim: int
    name: str = ""
    attention: str = "GQA"
    mla: bool = False
    window_tokens: int = 0
    window_layers: int = 0
    window_kv_heads: int = 0
    window_head_dim: int = 0
    fixed_bytes: int = 0
    model_layers: int = 0

    def __post_init__(self) -> None:
        if self.layers < 0 or self.kv_heads < 1 or self.head_dim < 1 or self.fixed_bytes < 0:
            raise ValueError(
                f"KV shape {self.name!r}: layers {self.layers}, kv_heads {self.kv_heads}, "
                f"head_dim {self.head_dim} and fixed_bytes {self.fixed_bytes} must not be negative or zero"
            )
        if not 0 <= self.window_layers <= self.layers:
            raise ValueError(
                f"KV shape {self.name!r}: {self.window_layers} of {self.layers} layers in a window"
            )
        if self.window_layers and self.window_tokens < 1:
            raise ValueError(f"KV shape {self.name!r}: {self.window_layers} window layers without a window")

    @property
    def full_layers(self) -> int:
        """Layers whose KV grows with every token."""
        return self.layers - self.window_layers

    def elements_per_token(self, tp: int = 1) -> int:
        """KV elements one token adds to the growing layers, over all `tp` ranks."""
        return self.full_layers * self._layer_elements(self.kv_heads, self.head_dim, tp)

    def window_elements_per_token(self, tp: int = 1) -> int:
        """KV elements one token takes in the window layers, over all `tp` ranks."""
        heads = self.window_kv_heads or self.kv_heads
        dim = self.window_head_dim or self.head_dim
        return self.window_layers * self._layer_elements(heads, dim, tp)

    def bytes_per_token(self, dtype: str, tp: int = 1) -> int:
        """Bytes one more token adds to the growing layers, over all `tp` ranks."""
        return math.ceil(self.elements_per_token(tp) * element_bytes(dtype))

    def window_bytes(
        self, tokens: int, dtype: str, tp: int = 1, page_size: int = 1, sequences: int = 1
    ) -> int:
        """Bytes of the window layers after `tokens` tokens: never more than the window's own pages."""
        if not self.window_layers:
            return 0
        kept = min(
            padded_tokens(tokens, page_size, sequences),
            sequences * padded_tokens(self.window_tokens, page_size),
        )
        return math.ceil(kept * self.window_elements_per_token(tp) * element_bytes(dtype))

    def kv_bytes(self, tokens: int, dtype: str, tp: int = 1, page_size: int = 1, sequences: int = 1) -> int:
        """Bytes held for `tokens` tokens (all sequences together), rounded up to whole pages.

        Growing layers + window layers + fixed state per sequence. 0 tokens hold nothing.
        """
        if tokens <= 0:
            return 0
        grown = padded_tokens(tokens, page_size, sequences) * self.elements_per_token(tp)
        return (
            math.ceil(grown * element_bytes(dtype))
            + self.window_bytes(tokens, dtype, tp, page_size, sequences)
            + self.fixed_bytes * sequences
        )

    def moved_bytes(
        self,
        tokens: int,
        held_tokens: int,
        dtype: str,
        tp: int = 1,
        page_size: int = 1,
        sequences: int = 1,
    ) -> int:
        """Bytes a prefill worker sends for `tokens` when decode holds the first `held_tokens` of them.

        Only whole held pages are spared. A fixed state is sent whole whenever anything is.
        """
        held = min(max(held_tokens, 0), max(tokens, 0)) // page_size * page_size
        return self.kv_bytes(tokens - held, dtype, tp, page_size, sequences)

    def _layer_elements(self, heads: int, dim: int, tp: int) -> int:
        if self.mla:
            return dim * tp
        return 2 * max(heads, tp) * dim


def padded_tokens(tokens: int, page_size: int = 1, sequences: int = 1) -> int:
    """`tokens` rounded up to whole pages, when `sequences` prompts of equal length share them."""
    block = page_size * sequences
    return -(-max(tokens, 0) // block) * block
