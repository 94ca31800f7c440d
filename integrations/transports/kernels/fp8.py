"""fp8 and back, with one scale for each layer, K/V and head: value = scale * fp8 value.

Errors, for a value x under scale s (largest magnitude / largest fp8 value): e4m3 |error| <= max(|x| / 16,
s / 1024), e5m2 |error| <= max(|x| / 8, s / 131072), half a step of 3 or 2 mantissa bits, or of the least
subnormal, 2^-9 or 2^-16; the wide dtype's own rounding on the way back is added.
"""

from collections.abc import Iterator

from kvferry.integrations.transports.kernels.tensors import DTYPES, torch

FP8 = frozenset({"fp8_e4m3", "fp8_e5m2"})
# 4 MiB of float32: more falls out of the cache, less pays for calls.
_CHUNK_ELEMENTS = 1 << 20
_SAME_WIDTH = {4: torch.int32, 2: torch.int16}


def quantise(
    staged: torch.Tensor,
    dtype: str,
    scales: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Staged KV in the fp8 `dtype`, in `out` where given, and its scales, float32 [layer, K/V, head].

    Without `scales` each head's largest magnitude becomes the largest fp8 value, so that nothing
    overflows; ValueError where one is not finite. Given ones (positive, finite) are used as they are: what
    they do not reach is clamped, infinities too, NaN stays NaN.
    """
    limit = torch.finfo(DTYPES[dtype]).max
    clamps = scales is not None
    if scales is None:
        scales = scales_for(magnitudes(staged), dtype)
    _check(scales, staged)
    out = result(staged, dtype, out)
    for layer, kv, part in _chunks(staged):
        values = staged[layer, kv, part] * (1 / scales[layer, kv])[:, None]  # float32
        out[layer, kv, part] = values.clamp_(-limit, limit) if clamps else values
    return out, scales


def dequantise(
    staged: torch.Tensor,
    dtype: str,
    scales: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """fp8 staged KV as `dtype`, each value times its head's scale (1 without `scales`), rounded once."""
    if scales is None:
        scales = torch.ones(staged.shape[0], 2, staged.shape[3], device=staged.device)
    _check(scales, staged)
    out = result(staged, dtype, out)
    for layer, kv, part in _chunks(staged):
        out[layer, kv, part] = _widened(staged[layer, kv, part]).mul_(scales[layer, kv][:, None])
    return out


def scales_for(largest: torch.Tensor, dtype: str) -> torch.Tensor:
    """Scales under which each head's largest magnitude becomes the largest value of the fp8 `dtype`."""
    scales = (largest / torch.finfo(DTYPES[dtype]).max).clamp_(min=torch.finfo(torch.float32).tiny)
    scales[largest == 0] = 1.0
    return scales


def magnitudes(staged: torch.Tensor) -> torch.Tensor:
    """Largest |value| of each head, float32 [layer, K/V, head]; ValueError where one is not finite."""
    integers = staged.view(_SAME_WIDTH[staged.element_size()])
    mask = torch.iinfo(integers.dtype).max
    largest = torch.zeros(staged.shape[0], 2, staged.shape[3], dtype=integers.dtype, device=staged.device)
    # Without its sign bit a float orders as its integer does, NaN above all: 8 times as fast as abs().
    for layer, kv, part in _chunks(staged):
        found = (integers[layer, kv, part] & mask).amax(0).amax(-1)
        torch.maximum(largest[layer, kv], found, out=largest[layer, kv])
    values = largest.view(staged.dtype).float()
    bad = torch.nonzero(~torch.isfinite(values))
    if len(bad):
        layer, kv, head = bad[0].tolist()
        raise ValueError(f"KV of layer {layer}, {'KV'[kv]}, head {head} of {staged.dtype} is not finite")
    return values


def _widened(values: torch.Tensor) -> torch.Tensor:
    """fp8 values as float32: on a CPU by moving their bits into a float16, a ninth of torch's time."""
    if values.device.type == "cuda":
        return values.float()
    raw = values.view(torch.int8)
    if values.dtype == torch.float8_e5m2:  # a float16 without its low byte
        return raw.to(torch.int16).bitwise_left_shift_(8).view(torch.float16).float()
    if (raw & 127).amax() == 127:  # NaN, which has another pattern in float16
        return values.float()
    # Sign to bit 15, the rest from bit 7 up. The exponent's bias is 15 there and 7 here: 2^8 too small.
    bits = raw.to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~0x4000)
    return bits.view(torch.float16).float().mul_(256.0)


def result(staged: torch.Tensor, dtype: str, out: torch.Tensor | None) -> torch.Tensor:
    """`out`, or memory for the result of converting `staged`; ValueError for an `out` of another form."""
    wanted = DTYPES[dtype]
    if out is None:
        return torch.empty(staged.shape, dtype=wanted, device=staged.device)
    if out.shape != staged.shape or out.dtype != wanted or out.device != staged.device:
        raise ValueError(
            f"a result in {out.dtype} {list(out.shape)} on {out.device}, "
            f"must be {wanted} {list(staged.shape)} on {staged.device}"
        )
    return out


def _chunks(staged: torch.Tensor) -> Iterator[tuple[int, int, slice]]:
    layers, _, tokens, heads, head_dim = staged.shape
    step = max(1, _CHUNK_ELEMENTS // (heads * head_dim)) if staged.device.type == "cpu" else tokens
    for layer in range(layers):
        for kv in (0, 1):
            for first in range(0, tokens, step):
                yield layer, kv, slice(first, first + step)


def _check(scales: torch.Tensor, staged: torch.Tensor) -> None:
    wanted = (staged.shape[0], 2, staged.shape[3])
    if tuple(scales.shape) != wanted or scales.dtype != torch.float32 or scales.device != staged.device:
        raise ValueError(
            f"scales are {scales.dtype} {list(scales.shape)} on {scales.device}, "
            f"must be float32 {list(wanted)} on {staged.device}"
        )
    if not bool(((scales > 0) & torch.isfinite(scales)).all()):
        raise ValueError("scales must be positive and finite")
