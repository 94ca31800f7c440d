"""What a learned model sees of a plan: the same numbers when it is trained and when it decides."""

import math

import numpy as np

from kvferry.policy.candidates import Floats
from kvferry.policy.cluster import Cluster
from kvferry.policy.predict import ADMISSION, ITL, QUEUE, TRANSFER, Prediction
from kvferry.policy.request import Request
from kvferry.policy.standing import Standing

# Seconds are taken as ln(s + EPSILON_S): what takes less is all the same, and terms may be 0.
EPSILON_S = 1e-4
MAX_AGE_S = 60.0
MAX_KV_USE = 4.0

# Logarithms but for shares, counts and ages. `log_*_s` are structured predictions, online corrections
# included (log_admission_s: half a step too, as in `Costs`); pre and dec: of the worker that prefills, and of
# the one that decodes.
OF_REQUEST = ("log_prompt_tokens", "log_expected_output_tokens", "sequences")
OF_PREFILL = (
    "log_prefill_s",
    "log_new_tokens",
    "held_share",
    "chunks",
    "pre_running",
    "pre_arrivals_per_s",
    "pre_load_age_s",
)
OF_DECODE = (
    "log_itl_s",
    "log_dec_queue_s",
    "dec_running",
    "dec_prefill_share",
    "dec_kv_use",
    "dec_load_age_s",
)
OF_PLAN = (
    "split",
    "moves",
    "log_slowness",
    "log_ttft_s",
    "log_queue_s",
    "log_transfer_s",
    "log_admission_s",
    "log_moved_bytes",
    "log_descriptors",
)
FEATURES = (*OF_REQUEST, *OF_PREFILL, *OF_DECODE, *OF_PLAN)
FEATURE_SET = "v1"


def features(request: Request, cluster: Cluster, prediction: Prediction) -> Floats:
    """[F, P], float64, finite: one column per plan, rows as in FEATURES."""
    table, state = cluster.candidates, cluster.state
    worker = prediction.standing
    out = np.empty((len(FEATURES), len(table.pre)))
    out[0] = math.log(1.0 + request.prompt_tokens)
    out[1] = math.log(max(1.0, request.expected_output_tokens))
    out[2] = max(1, request.sequences)
    of_prefill, of_decode = _of_workers(request, cluster, worker)
    first = len(OF_REQUEST)
    of_prefill.take(table.pre, axis=1, out=out[first : first + len(OF_PREFILL)], mode="clip")
    first += len(OF_PREFILL)
    of_decode.take(table.dec, axis=1, out=out[first : first + len(OF_DECODE)], mode="clip")

    of_plan = out[first + len(OF_DECODE) :]
    of_plan[0] = table.split
    state.moves.take(table.link_index, out=of_plan[1], mode="clip")
    state.link_slowness.take(table.link_index, out=of_plan[2], mode="clip")
    np.add(prediction.structured_ttft_s, EPSILON_S, out=of_plan[3])
    np.add(prediction.terms[QUEUE], EPSILON_S, out=of_plan[4])
    np.add(prediction.terms[TRANSFER], EPSILON_S, out=of_plan[5])
    np.multiply(prediction.terms[ITL], 0.5, out=of_plan[6])
    of_plan[6] += prediction.terms[ADMISSION]
    of_plan[6] += EPSILON_S
    np.add(prediction.moved_bytes, 1.0, out=of_plan[7])
    np.add(prediction.descriptors, 1.0, out=of_plan[8])
    np.log(of_plan[2:], out=of_plan[2:])
    of_plan[1:3] *= of_plan[0]
    return out


def _of_workers(request: Request, cluster: Cluster, worker: Standing) -> tuple[Floats, Floats]:
    """OF_PREFILL and OF_DECODE, one column per worker."""
    state = cluster.state
    of_prefill = np.empty((len(OF_PREFILL), len(worker.chunks)))
    np.add(worker.prefill_s, EPSILON_S, out=of_prefill[0])
    np.add(worker.new_tokens, 1.0, out=of_prefill[1])
    np.log(of_prefill[:2], out=of_prefill[:2])
    np.multiply(worker.new_tokens, -1.0 / max(1, request.prompt_tokens), out=of_prefill[2])
    of_prefill[2] += 1.0
    of_prefill[3] = worker.chunks
    of_prefill[4] = worker.running
    of_prefill[5] = state.arrivals_per_s
    ages = of_prefill[6]
    np.subtract(cluster.time_s, state.load_time_s, out=ages)
    np.maximum(ages, 0.0, out=ages)
    np.minimum(ages, MAX_AGE_S, out=ages)

    of_decode = np.empty((len(OF_DECODE), len(worker.chunks)))
    np.add(worker.itls_s[2], EPSILON_S, out=of_decode[0])
    np.add(worker.waits_s[0], EPSILON_S, out=of_decode[1])
    np.log(of_decode[:2], out=of_decode[:2])
    of_decode[2] = worker.running
    of_decode[3] = state.prefill_share
    use = of_decode[4]
    np.add(state.foreign_context_tokens, state.own_context_tokens, out=use)
    use /= state.max_total_tokens
    np.minimum(use, MAX_KV_USE, out=use)
    of_decode[5] = ages
    return of_prefill, of_decode
