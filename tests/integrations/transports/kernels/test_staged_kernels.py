"""Gather, scatter and repack against one head of one token at a time, byte for byte."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kv_slow import DTYPES, FEW, filled, head_of, memory, places, ranges, raw, specs

from kvferry.integrations.transports.kernels import repack as repacking
from kvferry.integrations.transports.kernels import staged as staged_form
from kvferry.integrations.transports.kernels.staged import gather, scatter
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec, ranks_of
from kvferry.policy.kvshape import KVShape
from kvferry.policy.layout import KVLayout, LayoutOrder

SPEC = PoolSpec(2, 2, 4, pages=4, page_size=4, dtype="bfloat16")


@pytest.fixture(params=["torch", "triton"], scope="module")
def kernels(request):
    """torch's forms, and Triton's under its interpreter, which must be on when triton is imported."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "triton":
            patch.setenv("TRITON_INTERPRET", "1")
            pytest.importorskip("triton", reason="Triton's kernels need triton: make test-triton")
        else:
            patch.delenv("TRITON_INTERPRET", raising=False)
        name = staged_form._kernels(KVPool(SPEC)).__name__
        assert name.endswith(f"{request.param}_pages")
        yield request.param


@FEW
@given(data=st.data(), seed=st.integers(0, 99))
def test_gather(kernels, data, seed):
    spec = data.draw(specs())
    pool = filled(spec, seed)
    at, tokens = data.draw(places(spec))
    layers, heads = data.draw(ranges(0, spec.layers)), data.draw(ranges(spec.first_head, spec.heads))
    found = gather(pool, at, tokens, layers=layers, heads=heads)
    assert found.shape == (len(layers), 2, tokens, len(heads), spec.head_dim)
    for i, layer in enumerate(layers):
        for kv in (0, 1):
            for token in range(tokens):
                for j, head in enumerate(heads):
                    expected = head_of(pool, at, token, layer, kv, head)
                    assert raw(found[i, kv, token, j]) == raw(expected)


@FEW
@given(data=st.data(), seed=st.integers(0, 99))
def test_scatter_writes_that_and_nothing_else(kernels, data, seed):
    spec = data.draw(specs())
    pool, slow = filled(spec, seed), filled(spec, seed)
    at, tokens = data.draw(places(spec))
    layers, heads = data.draw(ranges(0, spec.layers)), data.draw(ranges(spec.first_head, spec.heads))
    shape = (len(layers), 2, tokens, len(heads), spec.head_dim)
    noise = np.random.default_rng(seed + 1).integers(0, 256, (*shape[:-1], spec.head_bytes), dtype=np.uint8)
    staged = torch.from_numpy(noise).view(pool.tensors[0].dtype)
    scatter(staged, pool, at, layers=layers, heads=heads)
    for i, layer in enumerate(layers):
        for kv in (0, 1):
            for token in range(tokens):
                for j, head in enumerate(heads):
                    head_of(slow, at, token, layer, kv, head).copy_(staged[i, kv, token, j])
    assert memory(pool) == memory(slow)


@FEW
@given(data=st.data(), seed=st.integers(0, 99))
def test_any_layout_into_any_other(kernels, data, seed):
    kv_heads = data.draw(st.sampled_from((1, 2, 4)))
    shape = KVShape(data.draw(st.integers(1, 3)), kv_heads, data.draw(st.sampled_from((1, 3, 8))))
    dtype = data.draw(st.sampled_from(DTYPES))
    sides = []
    for _ in range(2):
        layout = KVLayout(
            page_size=data.draw(st.sampled_from((1, 2, 3, 4))),
            dtype=dtype,
            tp=data.draw(st.sampled_from((1, 2, 4, 8))),
            order=data.draw(st.sampled_from(LayoutOrder)),
        )
        sides.append(ranks_of(shape, layout, pages=6))
    tokens = data.draw(st.integers(1, 6 * min(side[0].page_size for side in sides)))
    (src_at, _), (dst_at, _) = (data.draw(places(side[0], tokens)) for side in sides)
    src = replicas([filled(spec, seed + spec.first_head) for spec in sides[0]])
    dst, slow = ([filled(spec, seed + 50) for spec in sides[1]] for _ in range(2))
    with mock.patch.object(repacking, "_BUFFER_BYTES", data.draw(st.sampled_from((1, 64, 1 << 22)))):
        repacking.repack(src, src_at, dst, dst_at, tokens)
    for pool in slow:
        for head in range(pool.spec.first_head, pool.spec.first_head + pool.spec.heads):
            for giver in src:
                if head in range(giver.spec.first_head, giver.spec.first_head + giver.spec.heads):
                    break
            for layer in range(shape.layers):
                for kv in (0, 1):
                    for token in range(tokens):
                        value = head_of(giver, src_at, token, layer, kv, head)
                        head_of(pool, dst_at, token, layer, kv, head).copy_(value)
    assert [memory(pool) for pool in dst] == [memory(pool) for pool in slow]


def replicas(pools: list[KVPool]) -> list[KVPool]:
    """The same bytes in ranks that hold the same heads: filled() depends on the first head only."""
    for one in pools:
        for other in pools:
            if one.spec.first_head == other.spec.first_head:
                assert memory(one) == memory(other)
    return pools


def test_gather_into_a_buffer(kernels):
    pool = filled(SPEC, 1)
    at = Place.of([3, 0, 2], first=1)
    buffer = torch.zeros(3, 2, 9, 2, 4, dtype=torch.bfloat16)
    assert gather(pool, at, 9, out=buffer[1:]).data_ptr() == buffer[1:].data_ptr()
    assert raw(buffer[1:]) == raw(gather(pool, at, 9))
    assert not buffer[0].any()


def test_wide_pages_take_more_than_one_block(kernels):
    """6,000 words a page: a Triton program copies 1,024."""
    spec = PoolSpec(1, 3, 1000, pages=3, page_size=8, dtype="float16")
    pool, copy = filled(spec, 1), KVPool(spec)
    scatter(gather(pool, Place.of([2, 0, 1]), 23), copy, Place.of([2, 0, 1]))
    for kv in (0, 1):
        assert raw(copy.blocks(0, kv)[[2, 0]]) == raw(pool.blocks(0, kv)[[2, 0]])
        assert raw(copy.blocks(0, kv)[1, :7]) == raw(pool.blocks(0, kv)[1, :7])
        assert not copy.blocks(0, kv)[1, 7].any()


@pytest.mark.parametrize(
    ("at", "tokens", "options", "said"),
    [
        (Place.of([0, 4]), 8, {}, "page 4 is outside a pool of 4 pages"),
        (Place.of([0, -1]), 8, {}, "page -1 is outside"),
        (Place.of([0, 1]), 9, {}, "3 needed"),
        (Place.of([0]), 0, {}, "0 tokens"),
        (Place.of([0]), 1, {"layers": range(1, 3)}, "layers"),
        (Place.of([0]), 1, {"heads": range(0)}, "heads"),
        (Place.of([0]), 1, {"heads": range(1, 3)}, "heads"),
        (Place.of([0]), 1, {"layers": range(0, 2, 2)}, "layers"),
    ],
)
def test_what_is_not_in_the_pool(at, tokens, options, said):
    with pytest.raises(Impossible, match=said):
        gather(KVPool(SPEC), at, tokens, **options)


def test_a_page_is_not_written_twice():
    pool = KVPool(SPEC)
    staged = gather(pool, Place.of([1, 1]), 8)
    with pytest.raises(Impossible, match="page 1 is given twice"):
        scatter(staged, pool, Place.of([1, 1]))


@pytest.mark.parametrize(
    ("staged", "said"),
    [
        (torch.zeros(2, 2, 4, 2, 4), "must be torch.bfloat16"),
        (torch.zeros(2, 2, 4, 2, 5, dtype=torch.bfloat16), r"must be .* \[2, 2, 4, 2, 4\]"),
        (torch.zeros(2, 2, 4, 4, 2, dtype=torch.bfloat16).mT, "not contiguous"),
    ],
)
def test_staged_form_of_another_pool(staged, said):
    with pytest.raises(ValueError, match=said):
        scatter(staged, KVPool(SPEC), Place.of([0]))
    if "contiguous" not in said:
        with pytest.raises(ValueError, match=said):
            gather(KVPool(SPEC), Place.of([0]), 4, out=staged)


def test_host_memory_without_the_interpreter_is_torchs(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert staged_form._kernels(KVPool(SPEC)).__name__.endswith("torch_pages")
