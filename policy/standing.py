"""What a request would find on each worker, and do to it: one [W] array per quantity."""

from dataclasses import dataclass

import numpy as np

from kvferry.policy.candidates import Floats, Ints
from kvferry.policy.cluster import Cluster, State
from kvferry.policy.interference import MAX_PREFILL_SHARE, interference
from kvferry.policy.request import Request

# Later arrivals count for 0.4 of themselves and at most 40: at full weight the rule pushes prefills
# onto decode workers (facts/scoring study, pitfall 5).
BEHIND_WEIGHT = 0.4
BEHIND_MAX = 40.0
# What a running decode has left to generate is not known: half of what this request expects, but not
# less than this, or requests with short outputs would seem to stall others for ever.
REMAINING_TOKENS = 64.0


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """[W] but for the stacks and `remaining_tokens`, what every running decode is thought to have left.

    `moved_tokens`: what would be sent to this worker, in whole pages. `chunks`: of its prefill, `chunk` and
    `last` being the parts of the new tokens in a full and in the last one. `stall_s`: how long that prefill
    holds up those who decode there. `running` decodes see `itls_s[0]` without this request, `[1]` when its
    prefill runs among them, `[2]` when it joins their batch; `behind` weighted arrivals wait `waits_s[0]`
    without it and `[1]` with it.
    """

    new_tokens: Floats
    moved_tokens: Floats
    chunks: Floats
    chunk: Floats
    last: Floats
    prefill_s: Floats
    stall_s: Floats
    admission_s: Floats
    running: Floats
    itls_s: Floats
    behind: Floats
    waits_s: Floats
    remaining_tokens: float

    def harm_s(self, pre: Ints, dec: Ints) -> Floats:
        """Seconds of others: decodes stalled and the queue behind on `pre`, a grown batch on `dec`."""
        here = self.running.take(pre) * self.stall_s.take(pre)
        here += self.behind.take(pre) * self.prefill_s.take(pre)
        slower_s = (self.itls_s[2] - self.itls_s[0]).take(dec)
        grown: Floats = self.running.take(dec) * slower_s * self.remaining_tokens
        return here + grown


def standing(request: Request, cluster: Cluster) -> Standing:
    """Every worker's terms (speeds: `Speed`).

    wait = others' tokens ahead * s per token + own seconds ahead. admission: what KV tokens or batch slots
    are short of, over the rate at which running requests free them (all of them once per output length).
    What prefill does to those who decode is in `interference`; times between tokens are corrected by what
    they were off by of late where requests run colocated, and where they do not.
    """
    table, state = cluster.candidates, cluster.state
    prompt, sequences = float(request.prompt_tokens), float(max(1, request.sequences))
    output = max(1.0, request.expected_output_tokens)
    remaining = max(0.5 * output, REMAINING_TOKENS)
    held = _held(request, cluster)
    page = table.page_tokens
    new = np.maximum(prompt - held, sequences)
    block = page * sequences
    moved = np.ceil((prompt - np.floor(held / page) * page) / block) * block
    chunks = np.ceil(new / state.chunk_tokens)
    chunk = np.minimum(state.chunk_tokens / new, 1.0)

    prefill = (held + 0.5 * new) * (1.0 / sequences)
    prefill *= state.prefill_s_per_token2
    prefill += state.prefill_s_per_token
    prefill *= new
    prefill += state.prefill_base_s
    waits = np.empty((2, len(new)))
    np.multiply(state.foreign_prefill_tokens, state.prefill_s_per_token, out=waits[0])
    waits[0] += state.own_prefill_s
    np.add(waits[0], prefill, out=waits[1])

    room, slots = state.max_total_tokens, state.max_running_requests
    decodes = state.foreign_decodes + state.own_decodes
    decodes *= table.decodes
    context = state.foreign_context_tokens + state.own_context_tokens
    running, resident = np.minimum(decodes, slots), np.minimum(context, room)
    joining = np.minimum(slots - running, sequences)
    joined = joining * (prompt / sequences + 0.5 * output)
    joined += resident
    steps = np.empty((2, len(new)))
    steps[0] = _step(state, running, resident)
    steps[1] = _step(state, running + joining, np.minimum(joined, room))
    decoding = interference(state, steps, running, new, prefill, waits[0], remaining)
    itls = decoding.itls_s * np.exp(state.itl_bias).take(table.mode_of)

    short = np.minimum(room, prompt + sequences * output)
    short += context
    short -= room
    short /= np.maximum(resident, 1.0)
    decodes += sequences
    decodes -= slots
    decodes /= slots
    np.maximum(short, decodes, out=short)
    np.maximum(short, 0.0, out=short)
    short *= itls[0]
    short *= output
    behind = waits[1] / (1.0 - np.minimum(state.prefill_share, MAX_PREFILL_SHARE))
    behind *= state.arrivals_per_s
    np.minimum(behind, BEHIND_MAX, out=behind)
    behind *= BEHIND_WEIGHT
    return Standing(
        new_tokens=new,
        moved_tokens=moved,
        chunks=chunks,
        chunk=chunk,
        last=1.0 - (chunks - 1.0) * chunk,
        prefill_s=prefill,
        stall_s=decoding.stall_s,
        admission_s=short,
        running=running,
        itls_s=itls,
        behind=behind,
        waits_s=waits,
        remaining_tokens=remaining,
    )


def _held(request: Request, cluster: Cluster) -> Floats:
    held = np.zeros(len(cluster.candidates.workers))
    for worker, tokens in request.held_tokens.items():
        place = cluster.candidates.index.get(worker)
        if place is not None:
            held[place] = max(0, min(tokens, request.prompt_tokens))
    return held


def _step(state: State, sequences: Floats, context_tokens: Floats) -> Floats:
    step = state.decode_s_per_sequence * sequences
    step += state.decode_s_per_context_token * context_tokens
    step += state.decode_base_s
    return step
