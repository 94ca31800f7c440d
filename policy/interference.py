"""What prompts that are computed on a worker do to those who decode there."""

from dataclasses import dataclass

import numpy as np

from kvferry.policy.candidates import Floats
from kvferry.policy.cluster import State

MAX_PREFILL_SHARE = 0.9
MIN_BUDGET_TOKENS = 16.0
LEAST_STEP_S = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Interference:
    """[W] of time between tokens: `itls_s` is [3, W], what those see who decode now, what they see when the
    request's prefill runs among them, and what they and it see when it has joined their batch. `stall_s`:
    how long its prefill holds each of them up in all."""

    itls_s: Floats
    stall_s: Floats


def interference(
    state: State,
    steps_s: Floats,
    running: Floats,
    new_tokens: Floats,
    prefill_s: Floats,
    waits_s: Floats,
    remaining: float,
) -> Interference:
    """`steps_s` is [2, W]: a decode step without the request and with it.

    Where chunks and decodes share steps (`State.mixes_chunks`), a mixed step gives a token too:

        mixed = max(step, (chunk - running) * prefill s per token)     the decodes come off the chunk, or
                step + (chunk - running) * measured stall per token     where the worker's plugin tells it
        background = 1 / (share / mixed + (1 - share) / step)           share of time in prefills
        itl = background + min(1, tokens / (chunk - running) / remaining) * (mixed - background)

    with the tokens queued there, and this prompt's, spread over the `remaining` tokens of an answer. Where
    decodes wait until no prompt does:

        background = step / (1 - share);  itl = background + seconds held up / remaining
    """
    share = np.minimum(state.prefill_share, MAX_PREFILL_SHARE)
    queued = state.foreign_prefill_tokens + state.own_prefill_tokens
    measured = state.stall_s_per_token
    told = measured > 0.0
    held_s = np.where(told, measured * queued, waits_s)
    stall_s = np.where(told, measured * new_tokens, prefill_s)
    background = steps_s / (1.0 - share)
    itls = np.empty((3, len(queued)))
    itls[0] = background[0] + held_s / remaining
    itls[1] = itls[0] + stall_s / remaining
    itls[2] = background[1] + held_s / remaining
    mixes = state.mixes_chunks
    if not mixes[mixes.argmax()]:
        return Interference(itls, stall_s)

    # a worker that told no speed yet has steps of no length
    steps_s = np.maximum(steps_s, LEAST_STEP_S)
    budget = np.maximum(state.chunk_tokens - running, MIN_BUDGET_TOKENS)
    mixed = np.maximum(steps_s, budget * state.prefill_s_per_token)
    mixed = np.where(told, steps_s + budget * measured, mixed)
    background = 1.0 / ((1.0 - share) / steps_s + share / mixed)
    slower = mixed - background
    per_token = 1.0 / (budget * remaining)
    part = np.minimum(queued * per_token, 1.0)
    more = np.minimum((queued + new_tokens) * per_token, 1.0)
    shared = np.empty_like(itls)
    shared[0] = background[0] + part * slower[0]
    shared[1] = background[0] + more * slower[0]
    shared[2] = background[1] + part * slower[1]
    held_up = (new_tokens / budget) * (mixed[0] - steps_s[0])
    return Interference(np.where(mixes, shared, itls), np.where(mixes, held_up, stall_s))
