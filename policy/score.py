"""From predicted terms to one number per plan: expected lost requests, own and others'.

    score = gT(ttft) + gI(itl)                                     this request
          + running * [gI(itl with the stall) - gI(itl)]           decodes a local prefill stalls
          + running * [gI(itl, batch + 1) - gI(itl)]               decodes a grown batch slows
          + behind * [gT(wait + prefill) - gT(wait)]               later arrivals in that queue
    g(x) = P(missing the SLO) + LINEAR * (x / SLO - 1 where positive) + TAIL * x / SLO

The first term of g is lognormal noise around the prediction, written as a log-logistic so that one
power suffices (within 0.01 of the normal CDF). The linear part keeps a hopeless worker from looking
free, up to SATURATES times the SLO; TAIL orders plans that all meet their SLO, or all miss it by far.
Source: rule X of the scoring study this design rests on, which beat every fixed rule by its
externality terms.
"""

from dataclasses import dataclass

import numpy as np

from kvferry.policy.candidates import Candidates, Floats
from kvferry.policy.predict import ITL, Prediction
from kvferry.policy.request import SLO

LOGISTIC = 1.702
# How far from its prediction a delay ends up, and where decodes begin to count as lost. The study had 0.335,
# 0.18 and 0.9; with queues in seconds and decodes that share steps with chunks, predictions are closer.
# Tuned in the simulator on the first half of each trace.
TTFT_SIGMA = 0.2
ITL_SIGMA = 0.07
ITL_MARGIN = 1.0
LINEAR = 0.1
TAIL = 1e-3
SATURATES = 11.0
MIN_SLO_S = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """`total` and `cautious` are [P] (`both` is the two), `ttft` (own loss by a late first token) too.

    `on_prefill` is [2, W]: losses by the stall and in the queue behind, on the worker that prefills;
    `on_decode` is [2, W]: own loss by slow tokens and that of the grown batch, on the one that decodes.
    """

    both: Floats
    total: Floats
    cautious: Floats
    ttft: Floats
    on_prefill: Floats
    on_decode: Floats


def loss(value_s: Floats, slo_s: float, sigma: float, margin: float = 1.0) -> Floats:
    """g: expected loss of a delay against `margin` of its SLO; strictly monotone, about 1/2 there."""
    ratio = value_s * (1.0 / (slo_s * margin))
    found = ratio * (TAIL * margin)
    np.minimum(ratio, SATURATES, out=ratio)
    odds = ratio ** (LOGISTIC / sigma)
    found += odds / (odds + 1.0)
    np.maximum(ratio, 1.0, out=ratio)
    ratio -= 1.0
    ratio *= LINEAR
    found += ratio
    return found


def score(prediction: Prediction, table: Candidates, slo: SLO) -> Scores:
    """Scores of all plans at once; lower is better."""
    ttft_slo_s, itl_slo_s = max(slo.ttft_s, MIN_SLO_S), max(slo.itl_s, MIN_SLO_S)
    worker = prediction.standing
    ttft = loss(prediction.ttft_s, ttft_slo_s, TTFT_SIGMA)
    alone, stalled, grown = loss(worker.itls_s, itl_slo_s, ITL_SIGMA, ITL_MARGIN)
    waited, pushed = loss(worker.waits_s, ttft_slo_s, TTFT_SIGMA)
    on_prefill, on_decode = np.empty((2, len(alone))), np.empty((2, len(alone)))
    np.multiply(worker.running, stalled - alone, out=on_prefill[0])
    np.multiply(worker.behind, pushed - waited, out=on_prefill[1])
    on_decode[0] = grown
    np.multiply(worker.running, grown - alone, out=on_decode[1])
    shared = (on_prefill[0] + on_prefill[1]).take(table.pre)
    if prediction.correction is None:
        shared += (on_decode[0] + on_decode[1]).take(table.dec)
    else:  # corrected plan by plan
        shared += on_decode[1].take(table.dec)
        shared += loss(prediction.terms[ITL], itl_slo_s, ITL_SIGMA, ITL_MARGIN)
    both = ttft + shared
    return Scores(both, both[0], both[1], ttft[0], on_prefill, on_decode)
