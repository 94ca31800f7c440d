"""Random and hand-made clusters for the policy tests."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvferry.policy.candidates import Candidates
from kvferry.policy.cluster import Cluster, State
from kvferry.policy.kvshape import KVShape
from kvferry.policy.layout import KVLayout, LayoutOrder
from kvferry.policy.link import Link
from kvferry.policy.request import SLO, Request
from kvferry.policy.worker import Load, Role, Speed, Worker

GQA = KVShape(layers=64, kv_heads=8, head_dim=128)
MLA = KVShape(layers=61, kv_heads=1, head_dim=576, mla=True)
WINDOW = KVShape(layers=48, kv_heads=4, head_dim=128, window_tokens=1000, window_layers=40)
HYBRID = KVShape(layers=12, kv_heads=2, head_dim=256, fixed_bytes=3_000_000)


def link(src: Worker, dst: Worker, transport: str, **changes: Any) -> Link:
    fast = Link(src.host, dst.host, transport, "ib", 2e-5, 41e9, 36e9, 7e-7)
    return replace(fast, merges_runs=transport == "mooncake", **changes)


def worker(role: Role, name: str = "", **changes: Any) -> Worker:
    name = name or role.value
    fresh = Worker(
        id=name, url="http://" + name, role=role, model="m", shape=GQA, bootstrap_port=1, host=name,
        transports=("mooncake",),
    )  # fmt: skip
    return replace(fresh, **changes)


def trio(**colocated: Any) -> list[Worker]:
    """One worker of each role; `colocated` changes the colocated one."""
    return [worker(Role.PREFILL), worker(Role.DECODE), worker(Role.COLOCATED, **colocated)]


def busy(decodes: float, context: float = 0.0, prefill_tokens: float = 0.0, **more: Any) -> Load:
    return Load(
        foreign_decodes=decodes,
        foreign_context_tokens=context,
        foreign_prefill_tokens=prefill_tokens,
        **more,
    )


def cluster(workers: list[Worker], time_s: float = 0.0, **changes: Any) -> Cluster:
    return Cluster.of(workers, lambda src, dst, transport: link(src, dst, transport, **changes), time_s)


def ask(prompt_tokens: int = 4000, **changes: Any) -> Request:
    return Request("r", "m", prompt_tokens, **changes)


small = st.floats(0, 1, allow_subnormal=False)
speeds = st.builds(
    Speed,
    prefill_base_s=st.floats(0, 0.05),
    prefill_s_per_token=st.floats(1e-6, 1e-3),
    prefill_s_per_token2=st.floats(0, 1e-8),
    decode_base_s=st.floats(1e-4, 0.05),
    decode_s_per_sequence=st.floats(0, 1e-3),
    decode_s_per_context_token=st.floats(0, 1e-6),
    chunk_tokens=st.sampled_from([256, 1000, 2048, 8192]),
    spread=st.floats(0, 1),
)
loads = st.builds(
    Load,
    time_s=st.floats(0, 20),
    foreign_prefill_tokens=st.floats(0, 1e5),
    foreign_decodes=st.floats(0, 300),
    foreign_context_tokens=st.floats(0, 1e6),
    prefill_share=small,
    stall_s_per_token=st.sampled_from([0.0, 0.0, 1e-5, 2e-4]),
)
layouts = st.builds(
    KVLayout,
    page_size=st.sampled_from([1, 1, 64]),
    dtype=st.sampled_from(["bfloat16", "bfloat16", "fp8_e4m3"]),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 1, 2]),
    cp=st.sampled_from([1, 1, 1, 2]),
    order=st.sampled_from([LayoutOrder.LAYER_FIRST, LayoutOrder.LAYER_FIRST, LayoutOrder.PAGE_FIRST]),
    staging_buffer=st.booleans(),
)
requests = st.builds(
    Request,
    id=st.just("r"),
    model=st.just("m"),
    prompt_tokens=st.integers(1, 200_000),
    expected_output_tokens=st.floats(1, 4000),
    sequences=st.sampled_from([1, 1, 1, 4]),
    slo=st.builds(SLO, ttft_s=st.floats(0.05, 10), itl_s=st.floats(0.005, 0.2)),
    held_tokens=st.dictionaries(
        st.sampled_from(["prefill0", "decode0", "colocated0", "colocated1"]), st.integers(0, 50_000)
    ),
    seed=st.integers(0, 2**63),
)


@st.composite
def fleets(draw: st.DrawFn, same_layout: bool = False) -> list[Worker]:
    shape = draw(st.sampled_from([GQA, MLA, WINDOW, HYBRID]))
    common = KVLayout(page_size=draw(st.sampled_from([1, 64])), tp=2, mla=shape.mla)
    fleet = []
    for role, most in ((Role.PREFILL, 2), (Role.DECODE, 3), (Role.COLOCATED, 2)):
        for i in range(draw(st.integers(1 if same_layout else 0, most))):
            layout = common if same_layout else replace(draw(layouts), mla=shape.mla)
            fleet.append(
                worker(
                    role,
                    f"{role.value}{i}",
                    shape=shape,
                    layout=layout,
                    transports=("mooncake", "nixl") if same_layout else draw(
                        st.sampled_from([("mooncake",), ("nixl",), ("mooncake", "nixl"), ()])
                    ),
                    bootstrap_port=1 if same_layout else draw(st.sampled_from([1, 1, 1, None])),
                    local_prefill=draw(st.booleans()),
                    mixes_chunks=draw(st.booleans()),
                    healthy=True if same_layout else draw(st.sampled_from([True, True, True, False])),
                    max_total_tokens=draw(st.sampled_from([20_000, 1_000_000])),
                    max_running_requests=draw(st.sampled_from([8, 256])),
                    speed=draw(speeds),
                    load=draw(loads),
                )
            )  # fmt: skip
    return fleet


links = st.builds(
    Link,
    src_host=st.just(""),
    dst_host=st.just(""),
    transport=st.just(""),
    path_class=st.just("any"),
    alpha_s=st.floats(0, 0.01),
    beta_bytes_per_s=st.floats(1e8, 4e11),
    beta_low_bytes_per_s=st.floats(1e8, 4e11),
    gamma_s_per_descriptor=st.floats(0, 1e-5),
    registration_s_per_byte=st.floats(0, 1e-9),
    first_contact_s=st.floats(0, 0.1),
    merges_runs=st.booleans(),
)


def wire(drawn: list[Link]) -> Any:
    """A link for every pair, out of `drawn`, whatever the order in which pairs are asked for."""

    def of(src: Worker, dst: Worker, transport: str) -> Link:
        place = sum(map(ord, src.id + dst.id + transport)) % len(drawn)
        return replace(drawn[place], src_host=src.host, dst_host=dst.host, transport=transport)

    return of


@st.composite
def clusters(draw: st.DrawFn, same_layout: bool = False) -> Cluster:
    fleet = draw(fleets(same_layout))
    table = Candidates.build(fleet, wire(draw(st.lists(links, min_size=3, max_size=3))))
    state = State.of(table)
    count = len(fleet)

    def column(most: float, size: int = count) -> np.ndarray:
        return np.array(draw(st.lists(st.floats(0, most), min_size=size, max_size=size)), dtype=float)

    state = replace(
        state,
        own_prefill_tokens=column(5e4),
        own_prefill_s=column(20),
        own_decodes=column(50),
        own_context_tokens=column(3e5),
        arrivals_per_s=column(20),
        moves=np.floor(column(5, len(state.moves))),
        link_slowness=1.0 + column(9, len(state.moves)),
        ttft_bias=column(1.1, 2) - column(0.7, 2),
        itl_bias=column(1.1, 2) - column(0.7, 2),
        queue_base_s=column(0.1, 2),
        link_offset_s=column(0.02, len(state.moves)) - column(0.01, len(state.moves)),
        link_byte_factor=0.2 + column(5, len(state.moves)),
        link_descriptor_factor=0.2 + column(5, len(state.moves)),
        link_more_per_byte=column(1e-5, len(state.moves)),
    )
    return Cluster(table, state, time_s=draw(st.floats(0, 30)))
