"""From one KV dtype to another, in staged form."""

from kvferry.integrations.transports.kernels.fp8 import dequantise, magnitudes, quantise, result
from kvferry.integrations.transports.kernels.tensors import DTYPES, torch

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def convert(
    staged: torch.Tensor,
    dtype: str,
    scales: torch.Tensor | None = None,
    wanted: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Staged KV in `dtype`, in `out` where given, and the result's scales where it is fp8, else None.

    `scales` are those that the input has where it is fp8 (1 without), `wanted` those that the output is to
    have where it is fp8 (its own without). The same dtype is returned as it is, or copied to `out`,
    with `scales`, unless other scales are wanted. The rest of it is in `fp8`.
    ValueError where a value is not finite in float16 or has no scale in fp8.
    """
    target = DTYPES[dtype]
    if staged.dtype == target and (wanted is None or target not in _FP8):
        return (staged if out is None else result(staged, dtype, out).copy_(staged)), scales
    if target in _FP8:
        wide = dequantise(staged, "float32", scales) if staged.dtype in _FP8 else staged
        return quantise(wide, dtype, wanted, out)
    if staged.dtype in _FP8:
        made = dequantise(staged, dtype, scales, out)
    else:
        made = result(staged, dtype, out).copy_(staged)
    if target == torch.float16:
        magnitudes(made)
    return made, None
