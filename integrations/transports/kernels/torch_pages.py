"""Gather and scatter by torch: one index_select or index_copy_ of words per layer and K/V."""

from collections.abc import Iterator

from kvferry.integrations.transports.kernels.selection import Selection
from kvferry.integrations.transports.kernels.tensors import as_words, torch
from kvferry.integrations.transports.pool import KVPool


def gather(pool: KVPool, chosen: Selection, staged: torch.Tensor) -> None:
    """Fill `staged`, contiguous and of `chosen.shape`."""
    pages, first = chosen.whole
    size = chosen.spec.page_size
    end = first + len(pages) * size
    index = torch.from_numpy(pages).to(pool.device)
    runs = chosen.runs
    for rows, target in _planes(pool, chosen, staged):
        if len(pages):
            torch.index_select(rows, 0, index, out=target[first:end].view(len(pages), size, -1))
        for page, slot, token, tokens in runs:
            target[token : token + tokens] = rows[page, slot : slot + tokens]


def scatter(pool: KVPool, chosen: Selection, staged: torch.Tensor) -> None:
    """Write `staged`, contiguous and of `chosen.shape`, into the pool."""
    pages, first = chosen.whole
    size = chosen.spec.page_size
    end = first + len(pages) * size
    index = torch.from_numpy(pages).to(pool.device)
    runs = chosen.runs
    for rows, source in _planes(pool, chosen, staged):
        if len(pages):
            rows.index_copy_(0, index, source[first:end].view(len(pages), size, -1))
        for page, slot, token, tokens in runs:
            rows[page, slot : slot + tokens] = source[token : token + tokens]


def _planes(
    pool: KVPool, chosen: Selection, staged: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each layer, K then V: the pool's rows [pages, page_size, words] and the staged [tokens, words]."""
    words = as_words(staged, pool.spec.head_bytes)
    for index, layer in enumerate(chosen.layers):
        for kv in (0, 1):
            yield pool.words(layer, kv, chosen.heads), words[index, kv]
