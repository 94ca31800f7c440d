"""What a model is shown, against slow and obvious code."""

import math

import numpy as np
import pytest
from hypothesis import given
from worlds import clusters, requests

from kvferry.policy.cluster import Cluster
from kvferry.policy.features import EPSILON_S, FEATURES, MAX_AGE_S, MAX_KV_USE, features
from kvferry.policy.predict import ADMISSION, ITL, PREFILL, QUEUE, TRANSFER, predict
from kvferry.policy.request import Request


def of_plan(request: Request, world: Cluster, row: int) -> dict[str, float]:
    """The features of one plan, from its own prediction."""
    table, state, told = world.candidates, world.state, predict(request, world)
    pre, dec, link = table.pre[row], table.dec[row], table.link_index[row]
    crosses = bool(table.split[row])

    def log_s(seconds: float) -> float:
        return math.log(seconds + EPSILON_S)

    def age_s(worker: int) -> float:
        return min(max(0.0, world.time_s - state.load_time_s[worker]), MAX_AGE_S)

    context = state.foreign_context_tokens[dec] + state.own_context_tokens[dec]
    return {
        "log_prompt_tokens": math.log(1 + request.prompt_tokens),
        "log_expected_output_tokens": math.log(max(1.0, request.expected_output_tokens)),
        "sequences": request.sequences,
        "log_prefill_s": log_s(told.terms[PREFILL, row]),
        "log_new_tokens": math.log(1 + told.new_tokens[row]),
        "held_share": 1 - told.new_tokens[row] / max(1, request.prompt_tokens),
        "chunks": math.ceil(told.new_tokens[row] / state.chunk_tokens[pre]),
        "pre_running": told.standing.running[pre],
        "pre_arrivals_per_s": state.arrivals_per_s[pre],
        "pre_load_age_s": age_s(pre),
        "log_itl_s": log_s(told.terms[ITL, row]),
        "log_dec_queue_s": log_s(told.standing.waits_s[0, dec]),
        "dec_running": told.standing.running[dec],
        "dec_prefill_share": state.prefill_share[dec],
        "dec_kv_use": min(context / state.max_total_tokens[dec], MAX_KV_USE),
        "dec_load_age_s": age_s(dec),
        "split": float(crosses),
        "moves": state.moves[link] if crosses else 0.0,
        "log_slowness": math.log(state.link_slowness[link]) if crosses else 0.0,
        "log_ttft_s": log_s(told.ttft_s[0, row]),
        "log_queue_s": log_s(told.terms[QUEUE, row]),
        "log_transfer_s": log_s(told.terms[TRANSFER, row]),
        "log_admission_s": log_s(told.terms[ADMISSION, row] + 0.5 * told.terms[ITL, row]),
        "log_moved_bytes": math.log(1 + told.moved_bytes[row]) if crosses else 0.0,
        "log_descriptors": math.log(1 + told.descriptors[row]) if crosses else 0.0,
    }


@given(clusters(), requests)
def test_arrays_match_the_scalar_reference(world: Cluster, request: Request) -> None:
    if not world.candidates.plans:
        return
    found = features(request, world, predict(request, world))
    assert found.shape == (len(FEATURES), len(world.candidates.plans))
    assert np.isfinite(found).all()
    for row in range(len(world.candidates.plans)):
        want = of_plan(request, world, row)
        assert tuple(want) == FEATURES
        for name, value in zip(FEATURES, found[:, row], strict=True):
            assert value == pytest.approx(want[name], rel=1e-9, abs=1e-9), name
