"""Several workloads as one, in the order of time; what they share stays within each."""

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

import numpy as np

from kvferry.models.workload.base import Ints, Workload


def merge(name: str, parts: Sequence[Workload]) -> Workload:
    """All requests of all parts. Blocks and sessions are numbered anew, apart for each part.

    Parts whose blocks differ in size are cut to the greatest size that divides them all.
    """
    sizes = [part.block_tokens for part in parts if len(part.block_ids)]
    block_tokens = gcd(*sizes) if sizes else parts[0].block_tokens
    parts = [reblocked(part, block_tokens) for part in parts]
    blocks, sessions = [], []
    next_block = next_session = 0
    for part in parts:
        ids, named = dense(part.block_ids)
        blocks.append(ids + next_block)
        next_block += named
        ids, named = dense(part.session[part.session >= 0])
        session = part.session.copy()
        session[session >= 0] = ids + next_session
        sessions.append(session)
        next_session += named
    counts = np.concatenate([np.diff(part.block_starts) for part in parts])
    arrival_s = np.concatenate([part.arrival_s for part in parts])
    order = np.argsort(arrival_s, kind="stable")
    return Workload(
        name=name,
        arrival_s=np.zeros(len(arrival_s)),
        prompt_tokens=np.concatenate([part.prompt_tokens for part in parts]),
        output_tokens=np.concatenate([part.output_tokens for part in parts]),
        max_new_tokens=np.concatenate([part.max_new_tokens for part in parts]),
        block_tokens=block_tokens,
        block_ids=np.concatenate(blocks),
        block_starts=np.concatenate(([0], np.cumsum(counts))),
        session=np.concatenate(sessions),
    ).take(order, arrival_s[order])


def dense(ids: Ints) -> tuple[Ints, int]:
    """The same ids numbered from 0, and how many there are."""
    named, numbers = np.unique(ids, return_inverse=True)
    return numbers.astype(np.int64), len(named)


def reblocked(workload: Workload, block_tokens: int) -> Workload:
    """The same prompts in smaller blocks. ValueError when the new size does not divide the old."""
    if not len(workload.block_ids):
        return replace(workload, block_tokens=block_tokens)
    factor, rest = divmod(workload.block_tokens, block_tokens)
    if rest:
        raise ValueError(f"blocks of {workload.block_tokens} tokens cannot be cut into {block_tokens}")
    if factor == 1:
        return workload
    ids = dense(workload.block_ids)[0]
    return replace(
        workload,
        block_tokens=block_tokens,
        block_ids=(ids[:, None] * factor + np.arange(factor)).ravel(),
        block_starts=workload.block_starts * factor,
    )
