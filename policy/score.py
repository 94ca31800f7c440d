"""From predicted terms to one number per plan: expected lost requests, own and others'.

    score = gT(ttft) + gI(itl)                                     this request
          + running * [gI(itl with the stall) - gI(itl)]           decodes a local prefill stalls
          + running * [gI(itl, batch + 1) - gI(itl)]               decodes a grown batch slows
          + behind * [gT(wait + prefill) - gT(wait)]               later arrivals in that queue
          + TAIL * (every one of these delays over its SLO)
    g(x) = P(missing the SLO) + LINEAR * clip(x / SLO - 1, 0, 10)

The first term of g is lognormal noise around the prediction, written as a log-logistic so that one
power suffices (within 0.01 of the normal CDF). The linear part keeps a hopeless worker from looking
free; TAIL orders plans that all meet their SLO. Source: rule X of the scoring study this design rests
on, which beat every fixed rule by its externality terms.
"""

from dataclasses import dataclass

import numpy as np

from kvferry.policy.candidates import Floats
from kvferry.policy.predict import CAUTIOUS, ITL, P50, PREFILL, TTFT, Prediction
from kvferry.policy.request import SLO

LOGISTIC = 1.702
TTFT_SIGMA = 0.335
ITL_SIGMA = 0.18
ITL_MARGIN = 0.9
LINEAR = 0.1
TAIL = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """`total` and `cautious` are [P]; the rest are the parts of the median total, [P] each."""

    total: Floats
    cautious: Floats
    ttft: Floats
    itl: Floats
    stall: Floats
    growth: Floats
    behind: Floats


def miss(value_s: Floats, slo_s: float, sigma: float) -> Floats:
    """Expected loss of a delay against its SLO: monotone, 1/2 at the SLO, unbounded above."""
    ratio = np.minimum(value_s * (1.0 / slo_s), 1e6)
    odds = ratio ** (LOGISTIC / sigma)
    loss = odds / (1.0 + odds)
    ratio -= 1.0
    np.maximum(ratio, 0.0, out=ratio)
    np.minimum(ratio, 10.0, out=ratio)
    ratio *= LINEAR
    loss += ratio
    return loss


def score(prediction: Prediction, slo: SLO, output_tokens: float) -> Scores:
    """Scores of all plans at once; lower is better."""
    itl_slo_s = ITL_MARGIN * slo.itl_s
    rows = prediction.terms[TTFT, P50 :: CAUTIOUS - P50]
    itl_rows = prediction.terms[ITL, P50 :: CAUTIOUS - P50]
    ttft = miss(rows, slo.ttft_s, TTFT_SIGMA)
    ttft += (TAIL / slo.ttft_s) * rows
    itls = np.concatenate(
        (
            itl_rows,
            (
                prediction.pre_itl_s,
                prediction.stalled_itl_s,
                prediction.dec_itl_s,
                prediction.grown_itl_s,
            ),
        )
    )
    losses = miss(itls, itl_slo_s, ITL_SIGMA)
    losses += (TAIL / slo.itl_s) * itls
    stall = prediction.stalled * (losses[3] - losses[2])
    growth = prediction.grown * (losses[5] - losses[4])
    own_s = prediction.terms[PREFILL, P50]
    waits = miss(np.stack((prediction.wait_s, prediction.wait_s + own_s)), slo.ttft_s, TTFT_SIGMA)
    behind = prediction.behind * (waits[1] - waits[0] + (TAIL / slo.ttft_s) * own_s)
    harm = stall + growth
    harm += behind
    totals = ttft + losses[:2]
    totals += harm
    return Scores(totals[0], totals[1], ttft[0], losses[0], stall, growth, behind)
