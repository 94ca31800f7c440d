"""What a learned model sees of a plan: the same numbers when it is trained and when it decides."""

import numpy as np

from kvferry.policy.candidates import Floats
from kvferry.policy.cluster import Cluster
from kvferry.policy.predict import TRANSFER, Prediction
from kvferry.policy.request import Request

# Seconds are taken as ln(s + EPSILON_S): what takes less is all the same, and terms may be 0.
EPSILON_S = 1e-4

# Logarithms but for shares, counts and ages. `log_*_s` are structured predictions, online corrections
# included; pre and dec: of the worker that prefills, and of the one that decodes.
OF_REQUEST = ("log_prompt_tokens", "log_expected_output_tokens", "sequences")
OF_PREFILL = (
    "log_queue_s",
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
    "log_admission_s",
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
    "log_transfer_s",
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
    out[0] = np.log(1.0 + request.prompt_tokens)
    out[1] = np.log(max(1.0, request.expected_output_tokens))
    out[2] = max(1, request.sequences)
    ages = np.maximum(cluster.time_s - state.load_time_s, 0.0)
    np.minimum(ages, MAX_AGE_S, out=ages)

    of_prefill = np.empty((len(OF_PREFILL), len(ages)))
    np.log(worker.waits_s[0] + EPSILON_S, out=of_prefill[0])
    np.log(worker.prefill_s + EPSILON_S, out=of_prefill[1])
    np.log(1.0 + worker.new_tokens, out=of_prefill[2])
    of_prefill[3] = 1.0 - worker.new_tokens / max(1.0, float(request.prompt_tokens))
    of_prefill[4] = worker.chunks
    of_prefill[5] = worker.running
    of_prefill[6] = state.arrivals_per_s
    of_prefill[7] = ages
    first = len(OF_REQUEST)
    of_prefill.take(table.pre, axis=1, out=out[first : first + len(OF_PREFILL)], mode="clip")

    of_decode = np.empty((len(OF_DECODE), len(ages)))
    np.log(worker.itls_s[2] + EPSILON_S, out=of_decode[0])
    np.log(worker.admission_s + EPSILON_S, out=of_decode[1])
    of_decode[2] = worker.running
    of_decode[3] = state.prefill_share
    context = state.foreign_context_tokens + state.own_context_tokens
    np.minimum(context / state.max_total_tokens, MAX_KV_USE, out=of_decode[4])
    of_decode[5] = ages
    first += len(OF_PREFILL)
    of_decode.take(table.dec, axis=1, out=out[first : first + len(OF_DECODE)], mode="clip")

    of_plan = out[first + len(OF_DECODE) :]
    of_plan[0] = table.split
    of_plan[1] = state.moves.take(table.link_index)
    of_plan[1] *= of_plan[0]
    of_plan[2] = state.link_slowness.take(table.link_index)
    np.log(of_plan[2], out=of_plan[2])
    of_plan[2] *= of_plan[0]
    np.add(prediction.structured_ttft_s, EPSILON_S, out=of_plan[3])
    np.add(prediction.terms[TRANSFER], EPSILON_S, out=of_plan[4])
    np.add(prediction.moved_bytes, 1.0, out=of_plan[5])
    np.add(prediction.descriptors, 1.0, out=of_plan[6])
    np.log(of_plan[3:], out=of_plan[3:])
    return out


MAX_AGE_S = 60.0
MAX_KV_USE = 4.0
