"""What a plan is predicted to cost, term by term, each with a spread."""

from dataclasses import dataclass

from kvferry.policy.deferring import Deferring


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted quantity: its median, 90th and (0: nobody says) 99th percentile, in its field's unit."""

    p50: float
    p90: float
    p99: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs(Deferring):
    """Predicted terms of one plan, in seconds; `score` is a loss in expected lost requests.

    queue: before prefill starts, bootstrap included. transfer: only what prefill does not hide.
    admission: waiting for KV room and the decode queue, and half a decode step until the next one starts.
    ttft = queue + prefill + transfer + repack + admission, times what predictions of its mode were off by of
    late (`State.ttft_bias`). itl: mean gap between tokens, corrected likewise. harm_s: delay put on others,
    in request-seconds (stalled decodes, a grown batch, the prefill queue behind). score: expected SLO loss
    plus harm, the quantity minimised; cautious_score: the same at pessimistic terms.

    `structured_ttft_s` and `structured_itl_s`: medians before a learned model corrected them; `fallback`: why
    one that was there did not. `features`: what it was, or would have been, shown (`policy.features`).
    `catalogue_transfer_s`: the transfer with nothing learned of its link (`policy.unlearned`), 0 colocated.
    """

    queue_s: Estimate
    prefill_s: Estimate
    transfer_s: Estimate
    repack_s: Estimate
    admission_s: Estimate
    ttft_s: Estimate
    itl_s: Estimate
    harm_s: Estimate
    score: float
    cautious_score: float
    moved_bytes: int = 0
    descriptors: int = 0
    relation: str = ""
    path_class: str = ""
    structured_ttft_s: float = 0.0
    structured_itl_s: float = 0.0
    fallback: str = ""
    features: tuple[float, ...] = ()
    catalogue_transfer_s: float = 0.0
