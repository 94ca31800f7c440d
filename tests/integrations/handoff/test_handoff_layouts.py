"""Whatever the two layouts: what one process hands to another arrives in the right pages and nowhere else."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from handoff_ways import PATTERN, WAYS, opening
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow_reference import Worker, as_bytes, fp8_error, normal, values, worker_bytes

from kvferry.integrations.transports.kernels.repack import repack
from kvferry.models.moves.choose import Form
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec, ranks_of
from kvferry.models.moves.relate import head_routes
from kvferry.policy.kvshape import KVShape
from kvferry.policy.layout import KVLayout, LayoutOrder

MIB = 2**20
FP8 = ("fp8_e4m3", "fp8_e5m2")
DTYPES = ("float32", "bfloat16", "float16", *FP8)
EIGHT_HEADS, FOUR_HEADS = KVShape(16, 8, 128), KVShape(16, 4, 128)
LAYOUTS = {
    "same": (EIGHT_HEADS, KVLayout(16), KVLayout(16)),
    "page 16 to 64": (EIGHT_HEADS, KVLayout(16), KVLayout(64)),
    "page 1 to 16": (EIGHT_HEADS, KVLayout(1), KVLayout(16)),
    "layer-first to page-first": (EIGHT_HEADS, KVLayout(16), KVLayout(16, order=LayoutOrder.PAGE_FIRST)),
    "TP2 to TP4": (EIGHT_HEADS, KVLayout(16, tp=2), KVLayout(16, tp=4)),
    "TP4 to TP1": (EIGHT_HEADS, KVLayout(16, tp=4), KVLayout(16, tp=1)),
    "TP8 of 4 heads to TP2": (FOUR_HEADS, KVLayout(16, tp=8), KVLayout(16, tp=2)),
    "bf16 to fp8": (EIGHT_HEADS, KVLayout(16), KVLayout(16, "fp8_e4m3")),
    "fp8 to bf16": (EIGHT_HEADS, KVLayout(16, "fp8_e4m3"), KVLayout(16)),
}
rooms = itertools.count(1)


@dataclass
class Case:
    """A sequence's KV: where it lies, where it goes, what it is."""

    src: tuple[PoolSpec, ...]
    src_at: Place
    dst: tuple[PoolSpec, ...]
    dst_at: Place
    kv: Any
    scales: torch.Tensor | None = None  # [layer, K/V, head], of fp8 values in the source

    @property
    def tokens(self) -> int:
        return int(self.kv.shape[2])

    def numbers(self) -> torch.Tensor:
        """What the source's bytes mean."""
        numbers = values(self.kv, self.src[0].dtype)
        return numbers if self.scales is None else numbers * self.scales[:, :, None, :, None]

    def source(self) -> Worker:
        worker = Worker(self.src, np.zeros(worker_bytes(self.src), np.uint8))
        worker.put(self.src_at, self.kv)
        return worker

    def source_scales(self) -> dict[int, torch.Tensor] | None:
        if self.scales is None:
            return None
        return {rank: self.scales[:, :, heads_of(spec)].contiguous() for rank, spec in enumerate(self.src)}


def heads_of(spec: PoolSpec) -> slice:
    return slice(spec.first_head, spec.first_head + spec.heads)


def case_of(shape: KVShape, src: KVLayout, dst: KVLayout, tokens: int, rng: Any) -> Case:
    """Shuffled pages of pools a quarter larger than the sequence."""
    sides = [ranks_of(shape, layout, max(1, tokens * 5 // 4 // layout.page_size)) for layout in (src, dst)]
    kv, scales = contents(shape, src.dtype, dst.dtype, tokens, rng)
    src_at, dst_at = (Place.of(rng.permutation(side[0].pages)) for side in sides)
    return Case(sides[0], src_at, sides[1], dst_at, kv, scales)


def contents(shape: KVShape, src: str, dst: str, tokens: int, rng: Any) -> tuple[Any, torch.Tensor | None]:
    """Any bytes where they travel as they are, numbers where they are converted."""
    dims = (shape.layers, 2, tokens, shape.kv_heads, shape.head_dim)
    scales = None
    if src in FP8:
        heads = (shape.layers, 2, shape.kv_heads)
        scales = torch.from_numpy(np.exp(rng.uniform(-3, 1, heads)).astype(np.float32))
    if src == dst:
        size = PoolSpec(1, 1, 1, 1, 1, src).element_bytes
        return rng.integers(0, 256, (*dims[:-1], dims[-1] * size), np.uint8), scales
    return as_bytes(normal(dims, rng), src), scales


def hand_over(
    way: Any,
    case: Case,
    *,
    form: Form | None = None,
    verify: bool = True,
    wanted: list[torch.Tensor] | None = None,
    **options: Any,
) -> Any:
    """The record of the move, after everything at the destination was checked.

    `wanted`: the scales that each destination rank has already; `options`: of both ends.
    """
    target = way.target(case.dst, **options)
    room = next(rooms)
    pages = {int(page) for page in case.dst_at.used(case.dst[0].page_size, case.tokens)}
    scales = None if wanted is None else [one.numpy().tobytes().hex() for one in wanted]
    target.expect(room, case.dst_at, case.tokens, verify=verify, scales=scales)
    before = target.pages()
    assert not before["free"] & pages
    assert not before["readable"]
    with way.source(case.source(), **options) as source:
        peering = source.connect("decode", "127.0.0.1", target.port)
        departure = source.send(
            peering,
            room,
            case.src_at,
            case.tokens,
            verify=verify,
            form=form,
            scales=case.source_scales(),
        )
        record = departure.wait(60)
    arrived = target.wait(room)
    assert (set(arrived["pages"]), arrived["tokens"]) == (pages, case.tokens)
    after = target.pages()
    assert after["readable"] == pages
    assert not after["quarantined"]
    check(case, target.worker, arrived["scales"], wanted)
    return record


def check(
    case: Case, found: Worker, scales: dict[str, str], wanted: list[torch.Tensor] | None = None
) -> None:
    """Every page of every rank, moved or not, against the slow reference."""
    src, dst = case.src[0].dtype, case.dst[0].dtype
    expected = Worker(case.dst, np.full(worker_bytes(case.dst), PATTERN, np.uint8))
    made = {
        int(rank): torch.frombuffer(bytearray.fromhex(one), dtype=torch.float32)
        for rank, one in scales.items()
    }
    if dst in FP8:
        if src != dst:
            repacked, at_once = repacked_at_once(case, wanted)
        for rank, spec in enumerate(case.dst):
            shape = (spec.layers, 2, spec.heads)
            own = made[rank].view(shape) if rank in made else torch.ones(shape)
            if wanted is not None:
                assert torch.equal(own, wanted[rank])
            if src == dst:
                same = torch.ones(shape) if case.scales is None else case.scales[:, :, heads_of(spec)]
                assert torch.equal(own, same)
            else:
                raw = found.take(rank, case.dst_at, case.tokens)
                numbers = case.numbers()[:, :, :, heads_of(spec)]
                got = values(raw, dst) * own[:, :, None, :, None]
                assert ((got - numbers).abs() <= fp8_error(numbers, own, dst) * (1 + 1e-5)).all()
                assert torch.equal(own, at_once[rank])
                assert (raw == repacked.take(rank, case.dst_at, case.tokens)).all()
                lone = Worker((spec,), expected.rank(rank))  # what was not moved is checked below
                lone.put(case.dst_at, shifted(raw, spec, case.kv.shape[3]))
    if src == dst:
        expected.put(case.dst_at, case.kv)
    elif dst not in FP8:
        expected.put(case.dst_at, as_bytes(case.numbers(), dst))
    right = sum(
        one == other
        for rank, other_rank in zip(found.digests(), expected.digests(), strict=True)
        for one, other in zip(rank, other_rank, strict=True)
    )
    assert right == len(case.dst) * case.dst[0].pages


def repacked_at_once(
    case: Case, wanted: list[torch.Tensor] | None
) -> tuple[Worker, tuple[torch.Tensor | None, ...]]:
    """What one process makes of it, and its scales: fp8 made in portions must be no other."""
    source, made = case.source(), Worker(case.dst, np.zeros(worker_bytes(case.dst), np.uint8))
    pools = [[side.pool(rank) for rank in range(len(side.specs))] for side in (source, made)]
    given = case.source_scales()
    src_scales = None if given is None else [given[rank] for rank in range(len(case.src))]
    return made, repack(
        pools[0], case.src_at, pools[1], case.dst_at, case.tokens, src_scales=src_scales, dst_scales=wanted
    )


def shifted(raw: Any, spec: PoolSpec, heads: int) -> Any:
    """A rank's bytes as those of a whole model."""
    whole = np.zeros((*raw.shape[:3], heads, raw.shape[4]), np.uint8)
    whole[:, :, :, heads_of(spec)] = raw
    return whole


def model_bytes(shape: KVShape, dtype: str) -> int:
    """One token's KV of the whole model."""
    return PoolSpec(shape.layers, shape.kv_heads, shape.head_dim, 1, 1, dtype).page_bytes


@pytest.mark.parametrize("layout", LAYOUTS)
def test_64_mib_of_shuffled_pages(way, layout):
    shape, src, dst = LAYOUTS[layout]
    each = [model_bytes(shape, side.dtype) for side in (src, dst)]
    case = case_of(shape, src, dst, 64 * MIB // max(each), np.random.default_rng(1))
    record = hand_over(way, case, slot_bytes=16 * MIB)
    assert record.tokens == case.tokens
    assert (record.src_bytes, record.dst_bytes) == tuple(case.tokens * one for one in each)
    assert record.moved_bytes == case.tokens * min(each)
    assert (record.transport, record.verified) == (way.transport_name, True)
    assert record.total_s >= record.wire_s > 0


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "fp8" not in name])
def test_both_forms(way, layout, form):
    shape, src, dst = LAYOUTS[layout]
    small = KVShape(4, shape.kv_heads, 16)
    case = case_of(small, src, dst, 256, np.random.default_rng(2))
    assert hand_over(way, case, form=form).form is form


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_that_fit_no_slot(way, layout, verify):
    shape, src, dst = LAYOUTS[layout]
    case = case_of(KVShape(3, shape.kv_heads, 16), src, dst, 320, np.random.default_rng(6))
    pairs = head_routes(case.src, case.dst)
    byte_of = min(side[0].element_bytes for side in (case.src, case.dst))
    layer = 2 * case.tokens * max(len(heads) for _, _, heads in pairs) * 16 * byte_of
    record = hand_over(way, case, form=Form.STAGED, verify=verify, slot_bytes=layer * 2 // 5)
    # 128 tokens, whole pages, fit a slot; 320 are three portions of each layer.
    assert record.batches == 3 * 3 * len(pairs)


@pytest.mark.parametrize("slot_bytes", [2**20, 2**12])
def test_fp8_scales_that_the_destination_has_already(way, slot_bytes):
    """A prefix of the sequence is there: what follows must be in the same scales."""
    case = case_of(
        KVShape(3, 4, 16), KVLayout(16, tp=2), KVLayout(4, "fp8_e4m3", tp=4), 64, np.random.default_rng(3)
    )
    wanted = torch.linspace(0.9, 1.4, 3 * 2 * 4).view(3, 2, 4)
    given = [wanted[:, :, heads_of(spec)].contiguous() for spec in case.dst]
    hand_over(way, case, wanted=given, slot_bytes=slot_bytes)


small = st.integers(1, 3)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any two layouts of a small model, first tokens anywhere, pages in any order."""
    shape = KVShape(draw(small), draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 3, 8, 16))))
    src_dtype = draw(st.sampled_from(DTYPES))
    dtypes = src_dtype, draw(st.sampled_from((src_dtype, src_dtype, *DTYPES)))
    sides = [
        ranks_of(
            shape,
            KVLayout(
                page_size=draw(st.integers(1, 4)),
                dtype=dtype,
                tp=draw(st.sampled_from((1, 2, 4, 8))),
                order=draw(st.sampled_from(LayoutOrder)),
            ),
            pages=6,
        )
        for dtype in dtypes
    ]
    tokens = draw(st.integers(1, 6 * min(side[0].page_size for side in sides)))
    at = [
        Place.of(draw(st.permutations(range(6))), draw(st.integers(0, 6 * side[0].page_size - tokens)))
        for side in sides
    ]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return Case(sides[0], at[0], sides[1], at[1], *contents(shape, *dtypes, tokens, rng))


@pytest.mark.parametrize("name", WAYS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(), staged=st.booleans(), verify=st.booleans(), slots=small, layers=st.floats(0, 4))
def test_any_layout_to_any_other(ways, name, case, staged, verify, slots, layers):
    converts = case.src[0].dtype != case.dst[0].dtype
    # One token of a layer, some, or some layers: of the largest dtype, a rank pair has at most all heads.
    token_bytes = 2 * case.kv.shape[3] * case.dst[0].head_dim * 4
    slot_bytes = max(1, int(layers * case.tokens)) * token_bytes
    form = None if converts else Form.STAGED if staged else Form.SCATTERED
    record = hand_over(ways[name], case, form=form, verify=verify, slots=slots, slot_bytes=slot_bytes)
    assert record.form is Form.STAGED if converts or staged else Form.SCATTERED


def test_ranks_of_one_source_worker_in_two_processes(way):
    """Each has half of the heads; the room is complete when both are in."""
    case = case_of(KVShape(3, 4, 16), KVLayout(4, tp=2), KVLayout(16), 64, np.random.default_rng(4))
    target, room = way.target(case.dst), next(rooms)
    target.expect(room, case.dst_at, case.tokens)
    here = case.source()
    there = Worker(case.src, way.other.memory)
    there.memory[: worker_bytes(case.src)] = here.memory
    way.other.ask("source", **opening("prefill-1", there, [1], {}))
    with way.source(here, ranks=[0]) as source:
        peering = source.connect("decode", "127.0.0.1", target.port)
        source.send(peering, room, case.src_at, case.tokens).wait(30)
        assert not target.pages()["readable"]
        pages = [int(page) for page in case.src_at.pages]
        way.other.ask("send", port=target.port, room=room, pages=pages, tokens=case.tokens, gated=False)
        assert way.other.ask("sent", deadline_s=30.0) == case.kv.nbytes // 2
    check(case, target.worker, target.wait(room)["scales"])


def test_several_rooms_at_once_over_one_connection(way):
    rng = np.random.default_rng(5)
    whole = case_of(KVShape(4, 4, 32), KVLayout(16), KVLayout(16, tp=2), 512, rng)
    target = way.target(whole.dst)
    parts = [
        (next(rooms), Place.of(whole.src_at.pages[i : i + 4]), Place.of(whole.dst_at.pages[i : i + 4]))
        for i in range(0, 32, 4)
    ]
    for room, _, dst_at in parts:
        target.expect(room, dst_at, 64, verify=True)
    with way.source(whole.source()) as source:
        peering = source.connect("decode", "127.0.0.1", target.port)
        departures = [source.send(peering, room, src_at, 64) for room, src_at, _ in parts]
        for departure in departures:
            departure.wait(30)
    for room, _, _ in parts:
        target.wait(room)
    check(whole, target.worker, {})
