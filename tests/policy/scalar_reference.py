"""Prediction and score of one plan, written out one number at a time from workers and links."""

import math

from kvferry.policy.cluster import Cluster
from kvferry.policy.layout import RelationKind, relate
from kvferry.policy.link import Link
from kvferry.policy.plan import Colocated, Plan
from kvferry.policy.request import Request
from kvferry.policy.worker import Role


def g(x: float, slo: float, sigma: float, margin: float = 1.0) -> float:
    ratio = x / (margin * slo)
    odds = min(ratio, 11.0) ** (1.702 / sigma)
    return odds / (1 + odds) + 0.1 * min(max(ratio - 1, 0), 10) + 1e-3 * x / slo


class OnWorker:
    def __init__(self, request: Request, cluster: Cluster, name: str) -> None:
        table, s = cluster.candidates, cluster.state
        i = table.index[name]
        self.worker = w = table.workers[i]
        self.spread = w.speed.spread
        self.seq = request.sequences
        self.prompt = request.prompt_tokens
        self.out = max(1.0, request.expected_output_tokens)
        self.remaining = max(self.out / 2, 64.0)
        self.held = min(request.held_tokens.get(name, 0), self.prompt)
        self.new = max(self.prompt - self.held, self.seq)
        v = w.speed
        per_sequence = self.new / self.seq
        self.prefill = v.prefill_base_s + self.seq * (
            v.prefill_s_per_token * per_sequence
            + v.prefill_s_per_token2 * per_sequence * (self.held / self.seq + per_sequence / 2)
        )
        self.wait = w.load.foreign_prefill_tokens * v.prefill_s_per_token + s.own_prefill_s[i]
        slots, room = w.max_running_requests, w.max_total_tokens
        decodes = 0 if w.role is Role.PREFILL else w.load.foreign_decodes + s.own_decodes[i]
        context = w.load.foreign_context_tokens + s.own_context_tokens[i]
        self.running = min(decodes, slots)
        resident = min(context, room)
        joining = min(self.seq, slots - self.running)
        share = min(w.load.prefill_share, 0.9)
        queued = w.load.foreign_prefill_tokens + s.own_prefill_tokens[i]
        measured = w.load.stall_s_per_token
        budget = max(v.chunk_tokens - self.running, 16)

        def step(batch: float, tokens: float) -> float:
            return v.decode_base_s + v.decode_s_per_sequence * batch + v.decode_s_per_context_token * tokens

        def mixed_step(pure: float) -> float:
            if measured:
                return pure + budget * measured
            return max(pure, budget * v.prefill_s_per_token)

        def itl(pure: float, more: float) -> float:
            if not w.mixes_chunks:
                held_s = measured * queued if measured else self.wait
                stall_s = measured * self.new if measured else self.prefill
                return pure / (1 - share) + (held_s + more * stall_s) / self.remaining
            mixed = mixed_step(pure)
            background = 1 / (share / mixed + (1 - share) / pure)
            mixed_steps = min((queued + more * self.new) / budget, self.remaining)
            return (mixed_steps * mixed + (self.remaining - mixed_steps) * background) / self.remaining

        off = math.exp(s.itl_bias[int(not w.can_colocate or not w.healthy)])
        alone = step(self.running, resident)
        joined = min(resident + joining * (self.prompt / self.seq + self.out / 2), room)
        self.itl, self.stalled = off * itl(alone, 0), off * itl(alone, 1)
        self.grown = off * itl(step(self.running + joining, joined), 0)
        self.stall = measured * self.new if measured else self.prefill
        if w.mixes_chunks:
            self.stall = self.new / budget * (mixed_step(alone) - alone)
        missing_tokens = context + min(self.prompt + self.seq * self.out, room) - room
        missing_slots = decodes + self.seq - slots
        short = max(missing_tokens / max(resident, 1), missing_slots / slots, 0)
        self.admission = short * self.out * self.itl
        self.behind = 0.4 * min(s.arrivals_per_s[i] * (self.wait + self.prefill) / (1 - share), 40)


def visible(wire: float, at: OnWorker) -> float:
    """The largest of (compute done i + wire of chunks i..last) over all chunks, less the prefill."""
    base, chunk = at.worker.speed.prefill_base_s, at.worker.speed.chunk_tokens
    compute = at.prefill - base
    ends, sent = [], 0.0
    while sent < at.new:
        before = sent
        sent = min(sent + chunk, at.new)
        ends.append(base + compute * sent / at.new + wire * (at.new - before) / at.new)
    return max(ends) - at.prefill


def terms(request: Request, cluster: Cluster, plan: Plan) -> dict[str, float]:
    """Medians, `cautious_ttft`, `score`, `cautious` and `moved_bytes` of `plan`."""
    state, table = cluster.state, cluster.candidates
    split = not isinstance(plan, Colocated)
    pre = OnWorker(request, cluster, plan.prefill if split else plan.worker)
    dec = OnWorker(request, cluster, plan.decode if split else plan.worker)
    transfer = slow = repack = moved = descriptors = 0.0
    if split:
        src, dst = pre.worker, dec.worker
        row = table.plans.index(plan)
        link: Link = table.links[table.link_index[row]]
        relation = relate(src.layout, dst.layout, src.shape)
        page = src.layout.page_size
        tp = max(src.layout.tp, dst.layout.tp)
        moved = src.shape.moved_bytes(
            request.prompt_tokens, dec.held, src.layout.dtype, tp, page, request.sequences
        )
        block = page * request.sequences
        tokens = math.ceil((request.prompt_tokens - dec.held // page * page) / block) * block
        descriptors = relation.descriptors_per_token * tokens
        if link.merges_runs and relation.kind is RelationKind.DIRECT:
            descriptors = relation.descriptors_per_token * page * math.ceil(pre.new / src.speed.chunk_tokens)
        at = table.link_index[row]
        descriptors += moved * state.link_more_per_byte[at]
        crowd = (1 + state.moves[at]) * state.link_slowness[at]
        posting = link.gamma_s_per_descriptor * descriptors * state.link_descriptor_factor[at]
        latency = max(0.0, link.alpha_s + link.handoff_s + state.link_offset_s[at])
        meeting = link.first_contact_s + link.registration_s_per_byte * moved
        low = min(link.beta_low_bytes_per_s, link.beta_bytes_per_s)
        wire = (moved / link.beta_bytes_per_s * state.link_byte_factor[at] + posting) * crowd
        slow_wire = (moved / low * state.link_byte_factor[at] + posting) * crowd
        transfer = latency + visible(wire, pre) + meeting
        slow = 3 * latency + visible(slow_wire, pre) + meeting
        if relation.kind is RelationKind.STAGED:
            repack = 2 * moved / 100e9
    itl = dec.grown
    biased = math.exp(state.ttft_bias[int(split)])
    queue = pre.wait + state.queue_base_s[int(split)]
    notice = 0.0
    if split and dec.worker.can_colocate and dec.worker.healthy and not dec.worker.mixes_chunks:
        notice = max(0.0, dec.wait - (queue + pre.prefill + transfer + repack))
    ttft = queue + pre.prefill + transfer + repack + dec.admission + notice + itl / 2
    cautious_ttft = ttft + 1.2816 * pre.spread * pre.wait + slow - transfer + repack + dec.admission
    ttft, cautious_ttft = biased * ttft, biased * cautious_ttft
    slo = request.slo
    shared = g(dec.grown, slo.itl_s, 0.07, 1.0)
    shared += pre.running * (g(pre.stalled, slo.itl_s, 0.07, 1.0) - g(pre.itl, slo.itl_s, 0.07, 1.0))
    shared += dec.running * (g(dec.grown, slo.itl_s, 0.07, 1.0) - g(dec.itl, slo.itl_s, 0.07, 1.0))
    shared += pre.behind * (g(pre.wait + pre.prefill, slo.ttft_s, 0.2) - g(pre.wait, slo.ttft_s, 0.2))
    return {
        "prefill": pre.prefill,
        "queue": queue,
        "transfer": transfer,
        "repack": repack,
        "admission": dec.admission + notice,
        "itl": itl,
        "ttft": ttft,
        "cautious_ttft": cautious_ttft,
        "score": g(ttft, slo.ttft_s, 0.2) + shared,
        "cautious": g(cautious_ttft, slo.ttft_s, 0.2) + shared,
        "harm": pre.running * pre.stall
        + dec.running * (dec.grown - dec.itl) * dec.remaining
        + pre.behind * pre.prefill,
        "moved_bytes": moved,
        "descriptors": descriptors,
    }
