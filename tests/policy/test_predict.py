from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scalar_reference import terms
from worlds import GQA, ask, cluster, clusters, link, requests, trio, worker

from kvferry.policy.candidates import Candidates
from kvferry.policy.cluster import Cluster, State
from kvferry.policy.costs import Costs
from kvferry.policy.evaluation import Evaluation
from kvferry.policy.layout import KVLayout
from kvferry.policy.link import transfer_s
from kvferry.policy.predict import ADMISSION, TRANSFER, costs_of, predict
from kvferry.policy.request import Request
from kvferry.policy.score import score
from kvferry.policy.worker import Role, Speed


def costs_at(evaluation: Evaluation, row: int) -> Costs:
    return costs_of(evaluation.prediction, evaluation.cluster, [row], evaluation.scores.both)[0]


@given(st.one_of(clusters(), clusters(same_layout=True), clusters(same_layout=True)), requests)
def test_arrays_match_the_scalar_reference(world: Cluster, request: Request) -> None:
    if not world.candidates.plans:
        return
    found = predict(request, world)
    scores = score(found, world.candidates, request.slo)
    for row, plan in enumerate(world.candidates.plans):
        want = terms(request, world, plan)
        got = dict(
            zip(
                ("prefill", "queue", "transfer", "repack", "admission", "itl"),
                found.terms[:, row],
                strict=True,
            )
        )
        got |= {"ttft": found.ttft_s[0, row], "cautious_ttft": found.ttft_s[1, row]}
        got |= {"score": scores.total[row], "cautious": scores.cautious[row]}
        got |= {"descriptors": found.descriptors[row]}
        pre, dec = world.candidates.pre[row], world.candidates.dec[row]
        got["harm"] = float(found.standing.harm_s(np.array([pre]), np.array([dec]))[0])
        for name, value in got.items():
            # The bytes of a move are whole numbers in one and not in the other.
            assert value == pytest.approx(want[name], rel=1e-9, abs=1e-8 if name == "transfer" else 1e-11), (
                name
            )
        assert found.moved_bytes[row] == pytest.approx(want["moved_bytes"], rel=1e-9, abs=2)


@given(st.integers(1, 8000), st.integers(0, 9), st.booleans(), st.sampled_from(["mooncake", "nixl"]))
def test_one_chunk_costs_what_the_scalar_formula_says(
    tokens: int, in_flight: int, met: bool, transport: str
) -> None:
    workers = [worker(role, transports=(transport,)) for role in (Role.PREFILL, Role.DECODE)]

    def far(src, dst, name):
        return link(src, dst, name, registration_s_per_byte=1e-10, first_contact_s=0.02)

    key = f"split:prefill>decode@{transport}"
    table = Candidates.build(workers, far, met=frozenset([key] if met else []))
    state = State.of(table)
    state.moves[:] = in_flight
    found = predict(ask(tokens), Cluster(table, state))
    want = transfer_s(
        table.links[0], found.moved_bytes[0], found.descriptors[0], in_flight, first_contact=not met
    )
    assert found.terms[TRANSFER, 0] == pytest.approx(want, rel=1e-9)


@given(clusters(same_layout=True), requests, st.integers(1, 50_000))
def test_a_longer_prompt_never_costs_less(world: Cluster, request: Request, more: int) -> None:
    # what is held of the longer one beyond the shorter one would be a gift of its own
    held = {name: min(tokens, request.prompt_tokens) for name, tokens in request.held_tokens.items()}
    request = replace(request, held_tokens=held)
    short, long = (
        predict(request, world),
        predict(replace(request, prompt_tokens=request.prompt_tokens + more), world),
    )
    assert (long.moved_bytes >= short.moved_bytes).all()
    median, cautious = long.ttft_s >= short.ttft_s * (1 - 1e-9)
    assert median.all()
    # where the decode worker is busy for longer than all of that, TTFT is the same, and a shorter last chunk
    # leaves less of the move to be doubted
    at_once = short.terms[ADMISSION] == short.standing.admission_s.take(world.candidates.dec)
    assert cautious[at_once].all()


@given(
    st.floats(0, 1e12),
    st.floats(0, 1e10),
    st.floats(0, 1e5),
    st.integers(0, 10),
    st.integers(0, 10),
    st.booleans(),
)
def test_more_bytes_descriptors_or_moves_never_cost_less(
    moved: float, more: float, descriptors: float, moves: int, others: int, first: bool
) -> None:
    path = link(worker(Role.PREFILL), worker(Role.DECODE), "nixl", registration_s_per_byte=1e-10)
    base = transfer_s(path, moved, descriptors, moves, first)
    assert transfer_s(path, moved + more, descriptors, moves, first) >= base
    assert transfer_s(path, moved, descriptors + more, moves, first) >= base
    assert transfer_s(path, moved, descriptors, moves + others, first) >= base


@given(st.integers(1, 300_000), st.sampled_from(["mooncake", "nixl"]))
def test_wider_elements_never_cost_less(tokens: int, transport: str) -> None:
    found = []
    for dtype in ("fp4_e2m1", "fp8_e4m3", "bfloat16", "float32"):
        layout = KVLayout(dtype=dtype)
        pair = [worker(role, layout=layout, transports=(transport,)) for role in (Role.PREFILL, Role.DECODE)]
        made = predict(ask(tokens), cluster(pair))
        found.append((made.moved_bytes[0], made.terms[TRANSFER, 0], made.ttft_s[0, 0]))
    for narrow, wide in pairwise(found):
        assert all(a <= b for a, b in zip(narrow, wide, strict=True))
    assert found[0][0] < found[-1][0]


@given(clusters(), requests)
def test_terms_add_up_and_the_pessimistic_case_is_no_better(world: Cluster, request: Request) -> None:
    if not world.candidates.plans:
        return
    evaluation = Evaluation.of(request, world)
    assert (evaluation.scores.cautious >= evaluation.scores.total - 1e-12).all()
    for row in range(len(world.candidates.plans)):
        costs = costs_at(evaluation, row)
        off = np.exp(world.state.ttft_bias[int(world.candidates.split[row])])
        for quantile in ("p50", "p90"):
            parts = [
                getattr(term, quantile)
                for term in (
                    costs.queue_s,
                    costs.prefill_s,
                    costs.transfer_s,
                    costs.repack_s,
                    costs.admission_s,
                )
            ]
            assert getattr(costs.ttft_s, quantile) == pytest.approx(off * sum(parts), rel=1e-9, abs=1e-12)
        for name in (
            "queue_s",
            "prefill_s",
            "transfer_s",
            "repack_s",
            "admission_s",
            "ttft_s",
            "itl_s",
            "harm_s",
        ):
            term = getattr(costs, name)
            assert term.p90 >= term.p50 - 1e-12
            assert term.p50 >= -1e-12


@pytest.mark.parametrize("tokens", [2001, 2100, 2999, 3000, 3700, 4001])
@pytest.mark.parametrize("gb_s", [0.4, 1.3, 4.0, 5.2, 5.6, 8.0])
def test_a_move_in_chunks_ends_when_the_slowest_of_them_does(tokens: int, gb_s: float) -> None:
    """Prefill makes 5.2 GB/s of KV here: links under, at and over that wait for different chunks."""
    pair = [worker(role, speed=Speed(chunk_tokens=1000)) for role in (Role.PREFILL, Role.DECODE)]
    world = cluster(pair, beta_bytes_per_s=gb_s * 1e9)
    want = terms(ask(tokens), world, world.candidates.plans[0])["transfer"]
    assert predict(ask(tokens), world).terms[TRANSFER, 0] == pytest.approx(want, rel=1e-9)


EXTREMES = [
    ask(0),
    ask(1, expected_output_tokens=0.0),
    ask(10_000_000, expected_output_tokens=1e6),
    ask(5, sequences=64),
    ask(100, held_tokens={"colocated": 10**9, "decode": 100, "nobody": 3}),
]


@pytest.mark.parametrize("request_", EXTREMES, ids=lambda r: f"{r.prompt_tokens}x{r.sequences}")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_total_tokens": 0, "max_running_requests": 0},
        {"context_length": 0},
        {"speed": replace(worker(Role.DECODE).speed, chunk_tokens=-1, spread=0.0)},
        {"load": replace(worker(Role.DECODE).load, prefill_share=1.0, foreign_decodes=1e6)},
    ],
    ids=["idle", "no room", "no context", "no chunking", "always prefilling"],
)
def test_nothing_is_infinite_or_undefined(request_: Request, changes: dict) -> None:
    fleet = [replace(each, **changes) for each in trio()]
    with np.errstate(all="raise", under="ignore"):
        evaluation = Evaluation.of(request_, cluster(fleet))
    assert np.isfinite(evaluation.prediction.terms).all()
    assert np.isfinite(evaluation.prediction.ttft_s).all()
    assert np.isfinite(evaluation.scores.total).all()
    assert np.isfinite(evaluation.scores.cautious).all()


def test_an_empty_worker_admits_at_once_whatever_is_asked() -> None:
    costs = costs_at(
        Evaluation.of(ask(900, expected_output_tokens=5000.0), cluster(trio(max_total_tokens=1000))), 0
    )
    assert costs.admission_s.p50 == 0.5 * costs.itl_s.p50


def test_a_staged_move_pays_for_gather_and_scatter() -> None:
    pair = [
        worker(Role.PREFILL, layout=KVLayout(tp=2, staging_buffer=True)),
        worker(Role.DECODE, layout=KVLayout(tp=4, staging_buffer=True)),
    ]
    costs = costs_at(Evaluation.of(ask(), cluster(pair)), 0)
    assert costs.relation == "staged"
    assert costs.repack_s.p50 == pytest.approx(2 * 4000 * GQA.bytes_per_token("bfloat16", 4) / 100e9)
