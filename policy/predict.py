"""What every plan would cost this request, for all plans at once.

All times in seconds; [3, P] arrays hold the median, the 90th percentile, and the cautious case used to
tell a gain from its own uncertainty: prefill at its median (a misjudged prefill speed shifts every plan
alike), everything that tells plans apart at its 90th percentile.
"""

from dataclasses import dataclass

import numpy as np

from kvferry.policy.candidates import Bools, Floats
from kvferry.policy.cluster import Cluster, State
from kvferry.policy.costs import Costs, Estimate
from kvferry.policy.request import Request

P50, P90, CAUTIOUS = 0, 1, 2
QUEUE, PREFILL, TRANSFER, REPACK, ADMISSION, TTFT, ITL = range(7)
Z90 = 1.2816
MAX_PREFILL_SHARE = 0.9
# Later arrivals count for 0.4 of themselves and at most 40: at full weight the rule pushes prefills
# onto decode workers (facts/scoring study, pitfall 5).
BEHIND_WEIGHT = 0.4
BEHIND_MAX = 40.0

_PREFILL = np.array([[0.0], [Z90], [0.0]])
_QUEUE = np.array([[0.0], [Z90], [Z90]])
_FIXED = np.array([[1.0], [3.0], [3.0]])
_DOUBLE = np.array([[1.0], [2.0], [2.0]])
_ITL = np.array([[0.0], [Z90], [0.0]])


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Terms of every plan. `terms` is [7, 3, P], rows QUEUE .. ITL; everything else is [P].

    `contended_s` is the part of the transfer that other moves cause.

    Harm, in the seconds of others: `stall_s` decodes stopped by a local prefill, `growth_s` decodes
    slowed by one more sequence, `behind_s` later arrivals in the prefill queue. `itl_alone_s` is the
    decode worker's ITL without this request, `stalled_itl_s` the one its decodes see with the stall,
    `wait_s` the prefill queue's wait, `running` and `behind` how many requests each harm falls on.
    """

    feasible: Bools
    fits: Bools
    new_tokens: Floats
    terms: Floats
    contended_s: Floats
    moved_bytes: Floats
    descriptors: Floats
    stall_s: Floats
    growth_s: Floats
    behind_s: Floats
    stalled: Floats
    grown: Floats
    behind: Floats
    pre_itl_s: Floats
    stalled_itl_s: Floats
    dec_itl_s: Floats
    grown_itl_s: Floats
    wait_s: Floats


def predict(request: Request, cluster: Cluster) -> Prediction:
    """Terms of `request` under every plan of `cluster` (formulas: `Speed`, `Link`, and below).

    queue = tokens ahead * s per token. transfer: chunks travel while later ones are computed, so the
    move ends at max over chunks i of (compute done i + wire of chunks i..last); what exceeds the prefill
    is visible. admission: the shortfall of KV tokens or of batch slots over the rate at which running
    requests free them. itl = step time / (1 - share of time spent in local prefills).
    """
    table, state = cluster.candidates, cluster.state
    pre, dec = table.pre, table.dec
    prompt, sequences = float(request.prompt_tokens), float(request.sequences)
    output = max(1.0, request.expected_output_tokens)
    need = prompt + sequences * output
    held = _held(request, cluster)
    new = np.maximum(prompt - held, sequences)

    own = state.prefill_s_per_token2 * (held + 0.5 * new)
    own += state.prefill_s_per_token
    own *= new
    own += state.prefill_base_s
    wait = (state.foreign_prefill_tokens + state.own_prefill_tokens) * state.prefill_s_per_token
    share = np.minimum(state.prefill_share, MAX_PREFILL_SHARE)
    running, context = _decoding(state)
    pure = _step(state, np.minimum(running, state.max_running_requests), context)
    grown = _step(state, np.minimum(running + sequences, state.max_running_requests), context + need)
    awake = 1.0 - share
    itl_alone, itl_grown = pure / awake, grown / awake
    freeing = output * pure
    short_tokens = np.maximum(context + need - state.max_total_tokens, 0.0) / np.maximum(context, 1.0)
    short_slots = np.maximum(running + sequences - state.max_running_requests, 0.0)
    short_slots /= state.max_running_requests
    admission = np.maximum(short_tokens, short_slots) * freeing
    behind = np.minimum(state.arrivals_per_s * (wait + own) / awake, BEHIND_MAX)
    stalled_itl = itl_alone + own / (0.5 * output)

    own_p, spread_p, chunk_p, new_p = own[pre], state.spread[pre], state.chunk_tokens[pre], new[pre]
    moved = np.ceil(
        (prompt - np.floor(held[dec] / table.page_tokens) * table.page_tokens) / table.page_tokens
    )
    moved *= table.page_tokens
    moved_bytes = moved * table.wire_bytes + sequences * table.fixed_bytes
    window_tokens = table.workers[0].shape.window_tokens if table.workers else 0
    if window_tokens:
        moved_bytes += np.minimum(moved, window_tokens * sequences) * table.window_wire_bytes
    chunks = np.ceil(new_p / chunk_p)
    descriptors = moved * table.descriptors_per_token + table.merged_descriptors * chunks
    crowd = 1.0 + state.moves[table.link_index]
    posting = table.gamma_s * descriptors
    alone = np.empty((3, len(pre)))
    alone[P50] = moved_bytes * table.s_per_byte + posting
    alone[P90:] = moved_bytes * table.s_per_byte_slow + posting
    fixed = table.alpha_s * _FIXED + (table.meeting_s + table.meeting_s_per_byte * moved_bytes)
    transfer = fixed + _visible(alone * crowd, own_p, new_p, chunk_p, chunks)
    transfer *= table.split
    contended = np.where(table.split, alone[P50] * (crowd - 1.0), 0.0)
    terms = np.empty((7, 3, len(pre)))
    np.multiply(own_p, 1.0 + _PREFILL * spread_p, out=terms[PREFILL])
    np.multiply(wait[pre], 1.0 + _QUEUE * spread_p, out=terms[QUEUE])
    terms[TRANSFER] = transfer
    np.multiply(moved_bytes * table.repack_s_per_byte, _DOUBLE, out=terms[REPACK])
    np.multiply(admission[dec], _DOUBLE, out=terms[ADMISSION])
    np.multiply(itl_grown[dec], 1.0 + _ITL * state.spread[dec], out=terms[ITL])
    np.add.reduce(terms[QUEUE:TTFT], axis=0, out=terms[TTFT])
    terms[TTFT] += 0.5 * terms[ITL]
    resident = np.minimum(running, state.max_running_requests)
    return Prediction(
        feasible=_feasible(cluster),
        fits=(state.max_total_tokens[dec] >= prompt + sequences)
        & (state.max_total_tokens[pre] >= prompt)
        & (np.minimum(state.context_length[dec], state.context_length[pre]) * sequences > prompt),
        new_tokens=new_p,
        terms=terms,
        contended_s=contended,
        moved_bytes=moved_bytes,
        descriptors=descriptors,
        stall_s=(resident * own)[pre],
        growth_s=(resident * (itl_grown - itl_alone) * (0.5 * output))[dec],
        behind_s=(BEHIND_WEIGHT * behind * own)[pre],
        stalled=resident[pre],
        grown=resident[dec],
        behind=BEHIND_WEIGHT * behind[pre],
        pre_itl_s=itl_alone[pre],
        stalled_itl_s=stalled_itl[pre],
        dec_itl_s=itl_alone[dec],
        grown_itl_s=itl_grown[dec],
        wait_s=wait[pre],
    )


def costs_of(prediction: Prediction, cluster: Cluster, row: int, score: float, cautious: float) -> Costs:
    """The predicted terms of plan `row` as plain data."""

    queue, prefill, transfer, repack, admission, ttft, itl = (
        Estimate(p50, p90) for p50, p90 in prediction.terms[:, :CAUTIOUS, row].tolist()
    )
    harm = float(prediction.stall_s[row] + prediction.growth_s[row] + prediction.behind_s[row])
    spread = float(cluster.state.spread[cluster.candidates.pre[row]])
    relation, table = cluster.candidates.relations[row], cluster.candidates
    return Costs(
        queue_s=queue,
        prefill_s=prefill,
        transfer_s=transfer,
        repack_s=repack,
        admission_s=admission,
        ttft_s=ttft,
        itl_s=itl,
        harm_s=Estimate(harm, harm * (1.0 + Z90 * spread)),
        score=score,
        cautious_score=cautious,
        moved_bytes=int(prediction.moved_bytes[row]) if relation else 0,
        descriptors=int(prediction.descriptors[row]) if relation else 0,
        relation=relation.kind.value if relation else "",
        path_class=table.links[table.link_index[row]].path_class if relation else "",
    )


def _held(request: Request, cluster: Cluster) -> Floats:
    held = np.zeros(len(cluster.candidates.workers))
    for worker, tokens in request.held_tokens.items():
        place = cluster.candidates.index.get(worker)
        if place is not None:
            held[place] = min(tokens, request.prompt_tokens)
    return held


def _decoding(state: State) -> tuple[Floats, Floats]:
    return state.foreign_decodes + state.own_decodes, state.foreign_context_tokens + state.own_context_tokens


def _step(state: State, sequences: Floats, context_tokens: Floats) -> Floats:
    step = state.decode_s_per_sequence * sequences
    step += state.decode_s_per_context_token * context_tokens
    step += state.decode_base_s
    return step


def _visible(wire: Floats, prefill: Floats, new: Floats, chunk: Floats, chunks: Floats) -> Floats:
    """Seconds by which the move outlasts the prefill. The slowest chunk to wait for is the first, the
    last or the one before it: between full chunks both sums grow linearly."""
    first = np.minimum(chunk, new) / new
    last = 1.0 - (chunks - 1.0) * chunk / new
    ends = np.maximum(prefill + last * wire, prefill * first + wire)
    np.maximum(ends, prefill * (1.0 - last) + np.minimum(first + last, 1.0) * wire, out=ends)
    return ends - prefill


def _feasible(cluster: Cluster) -> Bools:
    plans = cluster.candidates.plans
    feasible = np.ones(len(plans), dtype=np.bool_)
    if not cluster.excluded:
        return feasible
    gone = {cluster.candidates.index[name] for name in cluster.excluded if name in cluster.candidates.index}
    for row, plan in enumerate(plans):
        if (
            plan.key in cluster.excluded
            or cluster.candidates.pre[row] in gone
            or cluster.candidates.dec[row] in gone
        ):
            feasible[row] = False
    return feasible
