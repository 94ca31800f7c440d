"""From which prompt length on a split pays, over a given kind of path.

Compared, in request-seconds (a second by which one request is later): the same two machines, either as
two colocated workers or as one prefill and one decode worker. One request of n uncached prompt tokens and
m output tokens arrives; P(n) is its prefill in K(n) chunks, D(B) a decode step of B sequences. A step that
mixes a chunk with decodes takes the sum of both less the prefill's base a, since the weights are read once
(Qwen3-32B, TP2, H200, 8 decodes of 1,024 tokens: a chunk of 512 adds 21 ms, alone it takes 31; 2,048 tokens
add 98 of 106; aiconfigurator-core 0.12.0).

What the split saves
    stalls: each of B decodes on the colocated worker waits for this prefill:   B * (P(n) - K(n) * a)
    mixing: and the prefill waits for their decode steps:                       K(n) * max(D(B) - a, 0)
What it costs
    transfer: the KV still on its way when prefill is done. Chunks are sent as they are computed: chunk k
        leaves at max(chunk k computed, chunk k-1 arrived) and takes alpha + bytes/beta + gamma*descriptors,
        beta and gamma divided over the units (NICs, GPU pairs) that ranks move over in parallel
    repack: seconds per byte, 0 between equal layouts
    waiting: the hand-over, one decode step of admission, and a longer prefill queue where one is given
    batch: the decode worker holds the decodes of both machines (B_d against B): this request's own tokens
        are slower by m * (D(B_d + 1) - D(B + 1)), and it slows B_d others instead of B

A split pays from n on when savings exceed costs at n and at every longer prompt up to the limit. Costs
grow pointwise with alpha, 1/beta and gamma, so that a slower path never breaks even earlier.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvferry.policy.kvshape import KVShape, element_bytes
from kvferry.policy.layout import KVLayout, relate
from kvferry.policy.link import PathClass
from kvferry.policy.worker import Speed

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The circumstances of a break-even; every one is printed with it.

    running_decodes: on the colocated worker (B). decode_batch: on the decode worker (B_d). context_tokens:
    mean context of a running decode. units: NICs (or GPU pairs) a move is spread over, for path classes
    counted per unit. merged_pages: neighbouring pages one descriptor carries (1: scattered, and NIXL).
    in_flight: other moves on the path, each slowing the others about n-fold.
    """

    output_tokens: int = 128
    running_decodes: int = 8
    decode_batch: int = 16
    context_tokens: int = 2048
    chunk_tokens: int = 8192
    dtype: str = "bfloat16"
    tp: int = 1
    page_size: int = 64
    merged_pages: int = 1
    units: int = 1
    in_flight: int = 0
    prefill_wait_s: float = 0.0
    repack_s_per_byte: float = 0.0
    max_prompt_tokens: int = 131_072


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Arrays over `prompt_tokens`: request-seconds saved and paid; `at` is None when it never pays."""

    path: PathClass
    prompt_tokens: NDArray[np.int64]
    saved_s: Array
    paid_s: Array
    exposed_s: Array
    at: int | None


def prompt_grid(max_tokens: int) -> NDArray[np.int64]:
    """Lengths tried: every token to 2,048, every 8 to 16,384, every 64 beyond, and `max_tokens`."""
    parts = (np.arange(1, 2049), np.arange(2056, 16385, 8), np.arange(16448, max_tokens + 1, 64))
    grid = np.concatenate(parts)
    return np.append(grid[grid < max_tokens], max_tokens).astype(np.int64)


def prefill_s(speed: Speed, tokens: Array, chunk_tokens: int) -> Array:
    """Seconds to prefill `tokens` alone, in chunks: each chunk pays the base once."""
    chunks = np.ceil(tokens / chunk_tokens)
    return (
        chunks * speed.prefill_base_s
        + speed.prefill_s_per_token * tokens
        + speed.prefill_s_per_token2 * tokens * tokens / 2
    )


def decode_step_s(speed: Speed, sequences: float, context_tokens: float) -> float:
    """Seconds of one decode step of `sequences` sequences with `context_tokens` tokens in all."""
    return (
        speed.decode_base_s
        + speed.decode_s_per_sequence * sequences
        + speed.decode_s_per_context_token * context_tokens
    )


def exposed_transfer_s(
    path: PathClass, shape: KVShape, speed: Speed, given: Assumptions, tokens: Array
) -> Array:
    """Seconds between the end of prefill and the arrival of the last KV byte, for each prompt length."""
    units = given.units if path.scope != "node" else 1
    size = element_bytes(given.dtype)
    layout = KVLayout(page_size=given.page_size, dtype=given.dtype, tp=given.tp, mla=shape.mla)
    per_token = relate(layout, layout, shape).descriptors_per_token / given.merged_pages
    contention = 1 + given.in_flight
    s_per_byte = contention / path.beta_bytes_per_s / units
    s_per_growing_token = (
        shape.elements_per_token(given.tp) * size * s_per_byte
        + per_token * path.gamma_s_per_descriptor * contention / units
    )
    window = np.minimum(tokens, shape.window_tokens) * shape.window_elements_per_token(given.tp) * size
    last_s = (window + shape.fixed_bytes) * s_per_byte
    arrived = np.zeros_like(tokens)
    for chunk in range(math.ceil(float(tokens.max()) / given.chunk_tokens)):
        before = chunk * given.chunk_tokens
        sent = np.clip(tokens - before, 0, given.chunk_tokens)
        padded = np.ceil(sent / given.page_size) * given.page_size
        computed = prefill_s(speed, np.minimum(tokens, before + given.chunk_tokens), given.chunk_tokens)
        is_last = tokens <= before + given.chunk_tokens
        wire = path.alpha_s + path.handoff_s + padded * s_per_growing_token + np.where(is_last, last_s, 0.0)
        arrived = np.where(sent > 0, np.maximum(arrived, computed) + wire, arrived)
    exposed: Array = arrived - prefill_s(speed, tokens, given.chunk_tokens)
    return exposed


def break_even(path: PathClass, shape: KVShape, speed: Speed, given: Assumptions) -> BreakEven:
    """Savings and costs of a split over `path` at every length of `prompt_grid`, and where it pays."""
    grid = prompt_grid(given.max_prompt_tokens)
    tokens = grid.astype(np.float64)
    here, there = given.running_decodes, given.decode_batch
    step = decode_step_s(speed, here, here * given.context_tokens)
    chunks = np.ceil(tokens / given.chunk_tokens)
    stall = prefill_s(speed, tokens, given.chunk_tokens) - chunks * speed.prefill_base_s
    saved = here * stall + chunks * max(step - speed.prefill_base_s, 0.0)
    exposed = exposed_transfer_s(path, shape, speed, given, tokens)
    admission = decode_step_s(speed, there, there * given.context_tokens)
    moved = np.ceil(tokens / given.page_size) * given.page_size * shape.bytes_per_token(given.dtype, given.tp)
    own = speed.decode_s_per_sequence + speed.decode_s_per_context_token * given.context_tokens
    mean_context = tokens + given.output_tokens / 2
    others = speed.decode_s_per_sequence + speed.decode_s_per_context_token * mean_context
    grown = (there - here) * given.output_tokens * (own + others)
    paid = exposed + moved * given.repack_s_per_byte + admission
    paid = paid + given.prefill_wait_s + grown
    losing = np.flatnonzero(saved <= paid)
    first = 0 if not losing.size else int(losing[-1]) + 1
    at = int(grid[first]) if first < grid.size else None
    return BreakEven(path, grid, saved, paid, exposed, at)
