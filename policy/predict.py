"""What every plan would cost this request, for all plans at once. All times in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvferry.policy.candidates import Bools, Floats
from kvferry.policy.cluster import Cluster
from kvferry.policy.correction import Correction
from kvferry.policy.costs import Costs, Estimate
from kvferry.policy.layout import Relation
from kvferry.policy.overlap import hidden_by, visible_s
from kvferry.policy.request import Request
from kvferry.policy.standing import Standing, standing

PREFILL, QUEUE, TRANSFER, REPACK, ADMISSION, ITL = range(6)
Z90 = 1.2816
# At the 90th percentile waiting for KV room, or a copy, takes twice and a path's latency three times as
# long: nothing measured is behind the catalogue's figures.
SLOW_ADMISSION = 2.0
SLOW_COPY = 2.0
SLOW_ALPHA = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Median terms of every plan: `terms` is [6, P], rows PREFILL .. ITL.

    `ttft_s` is [2, P]: the median, and the cautious case that tells a gain from its own uncertainty:
    prefill and ITL at their median (a misjudged speed shifts every plan alike), everything that tells
    plans apart at its 90th percentile. `standing` is per worker, the rest [P]. `fits`: prompt and first
    token fit the workers' KV room and context. `contended_s`: the part of the move that other moves
    cause, hidden or not.
    """

    standing: Standing
    feasible: Bools
    fits: Bools
    new_tokens: Floats
    terms: Floats
    transfer_p90_s: Floats
    ttft_s: Floats
    contended_s: Floats
    moved_bytes: Floats
    descriptors: Floats
    structured_ttft_s: Floats
    features: Floats | None = None
    correction: Correction | None = None


def predict(request: Request, cluster: Cluster) -> Prediction:
    """Structured terms of `request` under every plan of `cluster` (`standing` and `Link` have the formulas).

    wire = (bytes / beta * byte factor + gamma * descriptors * descriptor factor) * slowness * (1 + moves),
    transfer = what is visible of it + alpha + offset.  The factors and the offset are learned (`State`).
    queue = wait + base, learned too; admission: `Standing`, and what `_notice` adds.

    Chunks travel while later ones are computed, so the move ends at max over chunks i of
    (compute done i + wire of chunks i..last); what exceeds the prefill is visible. ttft = (queue +
    prefill + transfer + repack + admission + itl / 2) * exp(ttft_bias).
    """
    table, state = cluster.candidates, cluster.state
    pre, dec = table.pre, table.dec
    worker = standing(request, cluster)
    sequences = float(max(1, request.sequences))

    moved = worker.moved_tokens.take(dec)
    moved_bytes = moved * table.wire_bytes
    if table.bounded:
        moved_bytes += np.minimum(moved, table.window_tokens * sequences) * table.window_wire_bytes
        moved_bytes += table.fixed_bytes * (sequences * (moved > 0.0))
    descriptors = table.merged_descriptors * worker.chunks.take(pre)
    descriptors += moved * table.descriptors_per_token
    descriptors += moved_bytes * state.link_more_per_byte.take(table.link_index)
    moves = state.moves.take(table.link_index)
    slowness = state.link_slowness.take(table.link_index)
    per_byte = state.link_byte_factor.take(table.link_index)
    posting = table.gamma_s * descriptors
    posting *= state.link_descriptor_factor.take(table.link_index)
    wire = moved_bytes * table.s_per_byte
    wire *= per_byte
    wire += posting
    wire *= slowness
    contended = wire * moves
    wire += contended
    slow = moved_bytes * table.s_per_byte_slow
    slow *= per_byte
    slow += posting
    slow *= slowness
    slow *= moves + 1.0

    terms = np.empty((6, len(pre)))
    prefill, queue, transfer, repack, admission, itl = terms
    prefill[:] = worker.prefill_s.take(pre)
    queue[:] = worker.waits_s[0].take(pre)
    queue[: table.colocated_count] += state.queue_base_s[0]
    queue[table.colocated_count :] += state.queue_base_s[1]
    admission[:] = worker.admission_s.take(dec)
    itl[:] = worker.itls_s[2].take(dec)
    np.multiply(moved_bytes, table.repack_s_per_byte, out=repack)
    hidden = hidden_by(worker, cluster, pre)
    slow = visible_s(slow, hidden)
    latency = state.link_offset_s.take(table.link_index)
    latency *= table.split
    latency += table.alpha_s
    np.maximum(latency, 0.0, out=latency)
    slow += latency * SLOW_ALPHA
    meeting = table.meeting_s_per_byte * moved_bytes
    meeting += table.meeting_s
    slow += meeting
    np.add(visible_s(wire, hidden), latency, out=transfer)
    transfer += meeting
    _notice(admission, terms, worker, cluster)

    count = table.colocated_count
    off_ttft = np.exp(state.ttft_bias)
    ttft = np.empty((2, len(pre)))
    median, cautious = ttft
    np.add.reduce(terms[:ITL], axis=0, out=median)
    median += 0.5 * itl
    np.add(median, (worker.waits_s[0] * (Z90 * state.spread)).take(pre), out=cautious)
    cautious += slow - transfer
    cautious += (SLOW_COPY - 1.0) * repack
    cautious += ((SLOW_ADMISSION - 1.0) * worker.admission_s).take(dec)
    ttft[:, :count] *= off_ttft[0]
    ttft[:, count:] *= off_ttft[1]
    return Prediction(
        standing=worker,
        feasible=_feasible(cluster),
        fits=_fits(request, cluster),
        new_tokens=worker.new_tokens.take(pre),
        terms=terms,
        transfer_p90_s=slow,
        ttft_s=ttft,
        contended_s=contended,
        moved_bytes=moved_bytes,
        descriptors=descriptors,
        structured_ttft_s=median,
    )


def costs_of(prediction: Prediction, cluster: Cluster, rows: Sequence[int], scores: Floats) -> list[Costs]:
    """The predicted terms of some plans as plain data; `scores` is [2, P], median and cautious."""
    table, state, where = cluster.candidates, cluster.state, np.array(rows, dtype=np.intp)
    pre, dec, split = table.pre.take(where), table.dec.take(where), table.split.take(where)
    wide = 1.0 + Z90 * state.spread
    columns = np.empty((20, len(rows)))
    columns[:6] = prediction.terms.take(where, axis=1)
    columns[6], columns[7] = wide.take(pre), wide.take(dec)
    columns[8] = prediction.transfer_p90_s.take(where)
    columns[9] = prediction.ttft_s[0].take(where)
    columns[10] = prediction.standing.harm_s(pre, dec)
    columns[11:13] = scores.take(where, axis=1)
    columns[13] = np.exp(state.ttft_bias).take(split)
    columns[14] = prediction.moved_bytes.take(where)
    columns[15] = prediction.structured_ttft_s.take(where)
    columns[16] = prediction.standing.itls_s[2].take(dec)
    columns[17] = np.exp(state.ttft_wide).take(split)
    columns[18] = np.exp(state.itl_wide).take(split)
    columns[19] = np.exp(state.link_wide.take(table.link_index.take(where)))
    return [
        _costs(values, int(prediction.descriptors[row]), table.relations[row], table.path_classes[row])
        for row, values in zip(rows, columns.T.tolist(), strict=True)
    ]


def _costs(values: list[float], descriptors: int, relation: Relation | None, path_class: str) -> Costs:
    prefill, queue, transfer, repack, admission, itl = values[:6]
    wide, wide_dec, slow_transfer, ttft, harm, score, cautious, off, moved_bytes = values[6:15]
    raw_ttft, raw_itl, ttft_wide, itl_wide, slower = values[15:]
    slow_repack, slow_admission, slow_itl = SLOW_COPY * repack, SLOW_ADMISSION * admission, raw_itl * wide_dec
    waited = (prefill + queue) * wide + slow_transfer + slow_repack + slow_admission
    return Costs(
        queue_s=Estimate(queue, queue * wide),
        prefill_s=Estimate(prefill, prefill * wide),
        transfer_s=Estimate(transfer, max(transfer, slow_transfer * slower)),
        repack_s=Estimate(repack, slow_repack),
        admission_s=Estimate(admission + 0.5 * raw_itl, slow_admission + 0.5 * slow_itl),
        ttft_s=Estimate(ttft, max(ttft, off * (waited + 0.5 * slow_itl) * ttft_wide)),
        itl_s=Estimate(itl, max(itl, slow_itl * itl_wide)),
        harm_s=Estimate(harm, harm * wide),
        score=score,
        cautious_score=cautious,
        moved_bytes=int(moved_bytes),
        descriptors=descriptors,
        relation=relation.kind.value if relation else "",
        path_class=path_class,
        structured_ttft_s=raw_ttft,
        structured_itl_s=raw_itl,
    )


def _notice(admission: Floats, terms: Floats, worker: Standing, cluster: Cluster) -> None:
    """Add to the `admission` of splits what their decode worker has still to prefill when the KV is there.

    One that does not mix chunks into its steps looks only after that (measured on CPU workers: 5 ms when
    idle, 100 ms behind a prompt of its own).
    """
    table = cluster.candidates
    busy_s = np.where((table.mode_of == 0) & ~cluster.state.mixes_chunks, worker.waits_s[0], 0.0)
    if not busy_s[busy_s.argmax()] > 0.0:
        return
    count = table.colocated_count
    left_s = busy_s.take(table.dec[count:])
    left_s -= np.add.reduce(terms[:ADMISSION, count:], axis=0)
    admission[count:] += np.maximum(left_s, 0.0)


def _fits(request: Request, cluster: Cluster) -> Bools:
    state, table = cluster.state, cluster.candidates
    prompt, sequences = request.prompt_tokens, max(1, request.sequences)
    room, context = state.max_total_tokens, state.context_length
    if room[room.argmin()] >= prompt + sequences and context[context.argmin()] * sequences > prompt:
        return table.every
    computes = (room >= prompt) & (context * sequences > prompt)
    keeps = computes & (room >= prompt + sequences)
    return np.logical_and(computes.take(table.pre), keeps.take(table.dec))


def _feasible(cluster: Cluster) -> Bools:
    table = cluster.candidates
    if not cluster.excluded:
        return table.every
    gone = [table.index[name] for name in cluster.excluded if name in table.index]
    feasible = ~np.isin(table.pre, gone) & ~np.isin(table.dec, gone)
    feasible &= [key not in cluster.excluded for key in table.keys]
    return feasible
