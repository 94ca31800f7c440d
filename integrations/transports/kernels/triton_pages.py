"""Gather and scatter in one Triton launch for all layers, where torch needs one per layer and K/V."""

from contextlib import nullcontext
from typing import Any

import triton
import triton.language as tl

from kvferry.integrations.transports.kernels.selection import Selection
from kvferry.integrations.transports.kernels.tensors import as_words, torch
from kvferry.integrations.transports.pool import KVPool

BLOCK_WORDS = 1024
_WORDS = {torch.int64: tl.int64, torch.int32: tl.int32, torch.int16: tl.int16, torch.uint8: tl.uint8}


def gather(pool: KVPool, chosen: Selection, staged: torch.Tensor) -> None:
    """Fill `staged`, contiguous and of `chosen.shape`."""
    _launch(pool, chosen, staged, scatters=False)


def scatter(pool: KVPool, chosen: Selection, staged: torch.Tensor) -> None:
    """Write `staged`, contiguous and of `chosen.shape`, into the pool."""
    _launch(pool, chosen, staged, scatters=True)


def _launch(pool: KVPool, chosen: Selection, staged: torch.Tensor, scatters: bool) -> None:
    rows = [pool.words(layer, kv, chosen.heads) for layer in chosen.layers for kv in (0, 1)]
    page_words, slot_words, _ = rows[0].stride()
    size, width = chosen.spec.page_size, rows[0].shape[-1]
    pages = chosen.pages
    grid = (len(pages), triton.cdiv(size * width, BLOCK_WORDS), len(rows))
    on_device = torch.cuda.device(pool.device) if pool.device.type == "cuda" else nullcontext()
    with on_device:
        _copy[grid](
            torch.tensor([row.data_ptr() for row in rows], dtype=torch.int64, device=pool.device),
            torch.from_numpy(pages).to(pool.device),
            as_words(staged, pool.spec.head_bytes),
            page_words,
            slot_words,
            width,
            size,
            chosen.skipped,
            chosen.tokens,
            SCATTERS=scatters,
            WORD=_WORDS[rows[0].dtype],
            BLOCK=BLOCK_WORDS,
        )


def _copy_block(
    planes: Any,
    pages: Any,
    staged: Any,
    page_words: Any,
    slot_words: Any,
    width: Any,
    page_size: Any,
    skipped: Any,
    tokens: Any,
    SCATTERS: tl.constexpr,
    WORD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    nth = tl.program_id(0)
    plane = tl.program_id(2).to(tl.int64)
    inside = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = inside // width
    word = inside % width
    token = nth * page_size + slot - skipped
    wanted = (slot < page_size) & (token >= 0) & (token < tokens)
    page = tl.load(pages + nth)
    # A layer-first pool has an allocation per layer and K/V: only addresses reach them all in one launch.
    base = tl.load(planes + plane).to(tl.pointer_type(WORD))
    pooled = base + page * page_words + slot * slot_words + word
    packed = staged + (plane * tokens + token) * width + word
    if SCATTERS:
        tl.store(pooled, tl.load(packed, mask=wanted), mask=wanted)
    else:
        tl.store(packed, tl.load(pooled, mask=wanted), mask=wanted)


_copy = triton.jit(_copy_block)
