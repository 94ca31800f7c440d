"""torch, the KV dtypes in it, and views of memory as words."""

from kvferry.integrations.transports.errors import Missing

try:
    import torch
except ImportError:
    raise Missing("KV pools need torch: pip install 'kvferry[transports]'") from None

__all__ = ["DTYPES", "as_words", "integer_of", "torch"]

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def integer_of(nbytes: int) -> torch.dtype:
    """The widest integer that divides `nbytes`: copying int64 takes a sixth of copying bytes (facts)."""
    return _INTEGERS[nbytes & -nbytes if nbytes % 8 else 8]


def as_words(tensor: torch.Tensor, head_bytes: int) -> torch.Tensor:
    """`tensor` [..., heads, head_dim] as integers [..., words of all heads]; a view, its last two
    dimensions must be contiguous."""
    flat = tensor.flatten(-2)
    if flat.data_ptr() != tensor.data_ptr():
        raise ValueError("a tensor's heads are not contiguous")
    return flat.view(integer_of(head_bytes))
