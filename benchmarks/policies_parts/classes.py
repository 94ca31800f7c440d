"""Requests of a workload by prompt length, as a fluid model sees them."""

from dataclasses import dataclass

import numpy as np

from kvferry.models.workload.base import Workload

PER_QUARTILE = 4


@dataclass(frozen=True, slots=True)
class RequestClass:
    """Means over its requests. `share`: of all requests. `new_tokens`: of the prompt, not found in a cache.

    `attention`: new * (cached + new / 2). `decode_tokens`: output after the first token; `context`: KV
    tokens read for all of them, decode_tokens * (prompt + output / 2).
    """

    share: float
    quartile: int
    new_tokens: float
    attention: float
    decode_tokens: float
    context: float
    moved_tokens: float


def classes_of(workload: Workload) -> list[RequestClass]:
    """Four classes in each quartile of prompt length. Caches are taken for endless and shared by all."""
    cached = ideal_cached(workload)
    prompt = workload.prompt_tokens.astype(float)
    output = workload.output_tokens.astype(float)
    new = prompt - cached
    order = np.argsort(prompt, kind="stable")
    found = []
    for quartile, rows in enumerate(np.array_split(order, 4)):
        for part in np.array_split(rows, PER_QUARTILE):
            if not len(part):
                continue
            steps = output[part] - 1.0
            held = prompt[part] + output[part] / 2
            found.append(
                RequestClass(
                    share=len(part) / len(workload),
                    quartile=quartile,
                    new_tokens=float(new[part].mean()),
                    attention=float((new[part] * (cached[part] + new[part] / 2)).mean()),
                    decode_tokens=float(steps.mean()),
                    context=float((steps * held).mean()),
                    moved_tokens=float(new[part].mean()),
                )
            )
    return found


def ideal_cached(workload: Workload) -> np.ndarray:
    """[N] prompt tokens whose blocks some earlier request had, the very last token never among them."""
    seen: set[int] = set()
    return np.array([_held(workload, row, seen) for row in range(len(workload))], dtype=float)


def _held(workload: Workload, row: int, seen: set[int]) -> int:
    blocks = workload.blocks_of(row)
    held = next((place for place, block in enumerate(blocks) if block not in seen), len(blocks))
    seen.update(blocks)
    return min(held * workload.block_tokens, int(workload.prompt_tokens[row]) - 1)
