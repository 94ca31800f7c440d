"""The cluster as the router sees it at one moment: the only thing, beside the request, that decides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvferry.policy.candidates import Bools, Candidates, Floats, LinkOf
from kvferry.policy.correction import Corrector
from kvferry.policy.worker import Worker


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """What changes between decisions, as [W] arrays in the candidates' worker order.

    Speeds are `Speed`'s coefficients. `foreign_*` is work that others put there, from the workers' own
    counters; `own_*` is work that kvferry routers dispatched and have not seen finished, exact at
    dispatch, so that stale counters cannot make routers herd (facts: 1 s of staleness without it costs
    46% of goodput). `own_prefill_s`: as predicted, less what must have been done of it by now.
    `prefill_share`: part of time a worker spends prefilling, by recent dispatches and what others add.
    `stall_s_per_token`: measured, 0 where nobody does (`Load`). `mixes_chunks`: as of `Worker`.
    `arrivals_per_s`: requests recently dispatched to it. `moves` is [L]: moves in flight on each link.
    `link_slowness` is [L]: what a move takes there by what was seen, over what the catalogue says of bytes
    and descriptors; 1: as it says. `link_offset_s` [L] is what a move takes there beyond that whatever its
    size, `link_byte_factor` and `link_descriptor_factor` [L] what bytes and descriptors have shown to cost in
    the long run over what the catalogue says. `link_more_per_byte` [L]: descriptors per byte beyond those of
    a prompt whose pages are neighbours. `ttft_bias` and `itl_bias` are [2]: ln(actual / predicted) of
    late, of colocated and of split requests, to be added to a prediction's logarithm; `ttft_wide`, `itl_wide`
    [2] and `link_wide` [L], of moves: what is to be added to that of its 90th percentile, for 90% of outcomes
    to be under it; `transfer_wide` [1] alike, of moves as a learned model corrected them. `queue_base_s` [2]:
    what passes before a prefill starts though nothing is ahead of it. Chunks, KV room and batch slots are at
    least 1, as `of` sees to.
    """

    prefill_base_s: Floats
    prefill_s_per_token: Floats
    prefill_s_per_token2: Floats
    decode_base_s: Floats
    decode_s_per_sequence: Floats
    decode_s_per_context_token: Floats
    chunk_tokens: Floats
    spread: Floats
    max_total_tokens: Floats
    max_running_requests: Floats
    context_length: Floats
    mixes_chunks: Bools
    foreign_prefill_tokens: Floats
    foreign_decodes: Floats
    foreign_context_tokens: Floats
    prefill_share: Floats
    stall_s_per_token: Floats
    load_time_s: Floats
    own_prefill_tokens: Floats
    own_prefill_s: Floats
    own_decodes: Floats
    own_context_tokens: Floats
    arrivals_per_s: Floats
    moves: Floats
    ttft_bias: Floats
    itl_bias: Floats
    ttft_wide: Floats
    itl_wide: Floats
    queue_base_s: Floats
    link_slowness: Floats
    link_offset_s: Floats
    link_byte_factor: Floats
    link_descriptor_factor: Floats
    link_more_per_byte: Floats
    link_wide: Floats
    transfer_wide: Floats

    @classmethod
    def of(cls, candidates: Candidates) -> "State":
        """The workers' last reports, with nothing of our own in flight."""
        fleet = candidates.workers
        count, links = len(fleet), max(1, len(candidates.links))

        def column(get: Callable[[Worker], float]) -> Floats:
            return np.fromiter((get(worker) for worker in fleet), dtype=np.float64, count=count)

        return cls(
            prefill_base_s=column(lambda w: w.speed.prefill_base_s),
            prefill_s_per_token=column(lambda w: w.speed.prefill_s_per_token),
            prefill_s_per_token2=column(lambda w: w.speed.prefill_s_per_token2),
            decode_base_s=column(lambda w: w.speed.decode_base_s),
            decode_s_per_sequence=column(lambda w: w.speed.decode_s_per_sequence),
            decode_s_per_context_token=column(lambda w: w.speed.decode_s_per_context_token),
            # SGLang's -1 switches chunking off: the whole prompt is one chunk.
            chunk_tokens=column(
                lambda w: w.speed.chunk_tokens if w.speed.chunk_tokens > 0 else max(1, w.context_length)
            ),
            spread=column(lambda w: w.speed.spread),
            max_total_tokens=column(lambda w: max(1, w.max_total_tokens)),
            max_running_requests=column(lambda w: max(1, w.max_running_requests)),
            context_length=column(lambda w: w.context_length),
            mixes_chunks=np.array([worker.mixes_chunks for worker in fleet], dtype=np.bool_),
            foreign_prefill_tokens=column(lambda w: w.load.foreign_prefill_tokens),
            foreign_decodes=column(lambda w: w.load.foreign_decodes),
            foreign_context_tokens=column(lambda w: w.load.foreign_context_tokens),
            prefill_share=column(lambda w: w.load.prefill_share),
            stall_s_per_token=column(lambda w: w.load.stall_s_per_token),
            load_time_s=column(lambda w: w.load.time_s),
            own_prefill_tokens=np.zeros(count),
            own_prefill_s=np.zeros(count),
            own_decodes=np.zeros(count),
            own_context_tokens=np.zeros(count),
            arrivals_per_s=np.zeros(count),
            moves=np.zeros(links),
            ttft_bias=np.zeros(2),
            itl_bias=np.zeros(2),
            ttft_wide=np.zeros(2),
            itl_wide=np.zeros(2),
            queue_base_s=np.zeros(2),
            link_slowness=np.ones(links),
            link_offset_s=np.zeros(links),
            link_byte_factor=np.ones(links),
            link_descriptor_factor=np.ones(links),
            link_more_per_byte=np.zeros(links),
            link_wide=np.zeros(links),
            transfer_wide=np.zeros(1),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """`excluded`: worker ids and plan keys that this request must not use (already tried). `corrector`: a
    learned model over the structured predictions; None: there is none."""

    candidates: Candidates
    state: State
    time_s: float = 0.0
    excluded: frozenset[str] = field(default_factory=frozenset)
    corrector: Corrector | None = None

    @classmethod
    def of(cls, workers: Sequence[Worker], link_of: LinkOf, time_s: float = 0.0) -> "Cluster":
        candidates = Candidates.build(workers, link_of)
        return cls(candidates, State.of(candidates), time_s)
