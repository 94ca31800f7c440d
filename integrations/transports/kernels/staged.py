"""Between a pool's scattered pages and the staged form, which travels in one write.

The staged form is contiguous, [layer, K/V, token, head, element]: what `Move.staging` describes. It knows no
page size and no order, so a gather from one pool and a scatter into another change both, and a range of
heads taken on one side or filled on the other changes the TP degree.
"""

import importlib.util
import os
from types import ModuleType

from kvferry.integrations.transports.kernels import torch_pages
from kvferry.integrations.transports.kernels.selection import Selection
from kvferry.integrations.transports.kernels.tensors import DTYPES, torch
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.place import Place


def gather(
    pool: KVPool,
    at: Place,
    tokens: int,
    *,
    layers: range | None = None,
    heads: range | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`tokens` tokens of the pool in staged form, written to `out` where given (a registered buffer).

    `layers` and `heads` (numbers of the model's, not of the rank's) are ranges of step 1, all by default.
    On CUDA the copies are queued on the current stream: synchronise before memory is handed to a transport.
    `Impossible` where something asked for is not in the pool, ValueError for an `out` of another form.
    """
    chosen = Selection.of(pool.spec, at, tokens, layers, heads)
    if out is None:
        out = torch.empty(chosen.shape, dtype=DTYPES[pool.spec.dtype], device=pool.device)
    _check(out, pool, chosen)
    _kernels(pool).gather(pool, chosen, out)
    return out


def scatter(
    staged: torch.Tensor,
    pool: KVPool,
    at: Place,
    *,
    layers: range | None = None,
    heads: range | None = None,
) -> None:
    """Write tokens in staged form into the pool; what else its pages hold is left alone. See `gather`."""
    tokens = staged.shape[2] if staged.ndim == 5 else 0
    chosen = Selection.of(pool.spec, at, tokens, layers, heads, written=True)
    _check(staged, pool, chosen)
    _kernels(pool).scatter(pool, chosen, staged)


def _check(staged: torch.Tensor, pool: KVPool, chosen: Selection) -> None:
    wanted = DTYPES[pool.spec.dtype]
    if tuple(staged.shape) != chosen.shape or staged.dtype != wanted or staged.device != pool.device:
        raise ValueError(
            f"staged KV is {staged.dtype} {list(staged.shape)} on {staged.device}, "
            f"must be {wanted} {list(chosen.shape)} on {pool.device}"
        )
    if not staged.is_contiguous():
        raise ValueError("staged KV is not contiguous")


def _kernels(pool: KVPool) -> ModuleType:
    """Triton's for CUDA memory, and for host memory under its interpreter (TRITON_INTERPRET=1)."""
    wanted = pool.device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    if wanted and importlib.util.find_spec("triton") is not None:
        from kvferry.integrations.transports.kernels import triton_pages

        return triton_pages
    return torch_pages
