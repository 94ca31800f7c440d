"""Checksums of a move's KV, one for each page of the destination."""

import itertools

import numpy as np
import xxhash

from kvferry.integrations.transports.kernels.tensors import torch

__all__ = ["CHECKSUM_BYTES", "differing", "page_checksums"]

CHECKSUM_BYTES = 8


def page_checksums(staged: torch.Tensor, first: int, page_size: int) -> bytes:
    """xxh3-64 of the bytes of each page's tokens, 8 bytes each (big-endian), in the order of the pages.

    `staged` is [layer, K/V, token, head, element] in any dtype, contiguous; its token t is token
    (first + t) % page_size of page (first + t) // page_size. A page's bytes are taken in staged order, only
    those of tokens that it has. ValueError where `staged` has another shape; it has at least one token.
    """
    if staged.ndim != 5 or not staged.is_contiguous():
        raise ValueError(f"staged KV {list(staged.shape)} is not contiguous of 5 dimensions")
    layers, _, tokens = staged.shape[:3]
    raw = staged.view(torch.uint8).reshape(2 * layers, tokens, -1).cpu().numpy()
    walls = [0, *range(page_size - first % page_size, tokens, page_size), tokens]
    return b"".join(
        xxhash.xxh3_64_digest(np.ascontiguousarray(raw[:, start:end]).data)
        for start, end in itertools.pairwise(walls)
    )


def differing(given: bytes, found: bytes) -> int | None:
    """Index of the first page whose checksums differ, None where none does; both are of one length."""
    for index in range(0, len(found), CHECKSUM_BYTES):
        if given[index : index + CHECKSUM_BYTES] != found[index : index + CHECKSUM_BYTES]:
            return index // CHECKSUM_BYTES
    return None
