"""Conversion between KV dtypes, against the nearest of all fp8 values, and within the format's error."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kv_slow import DTYPES, FEW, head_of, normal, raw, specs

from kvferry.integrations.transports.kernels import fp8
from kvferry.integrations.transports.kernels import repack as repacking
from kvferry.integrations.transports.kernels.convert import convert
from kvferry.integrations.transports.kernels.fp8 import dequantise, magnitudes, quantise
from kvferry.integrations.transports.kernels.tensors import DTYPES as TORCH
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec, ranks_of
from kvferry.policy.kvshape import KVShape
from kvferry.policy.layout import KVLayout

FP8 = ("fp8_e4m3", "fp8_e5m2")
# (half a step relative to the value, half of the least subnormal)
BOUNDS = {"fp8_e4m3": (2.0**-4, 2.0**-10), "fp8_e5m2": (2.0**-3, 2.0**-17)}
WIDE = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-10}


def codes(dtype: str) -> torch.Tensor:
    """All 256 values of an fp8 dtype."""
    return torch.arange(256, dtype=torch.int16).to(torch.uint8).view(TORCH[dtype])


def values(seed: int, dtype: str, tokens: int = 5) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-6, 3, (2, 2, 1, 3, 1))
    return torch.from_numpy(rng.standard_t(2, (2, 2, tokens, 3, 4)) * sizes).clamp(-6e4, 6e4).to(TORCH[dtype])


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("dtype", FP8)
@FEW
@given(seed=st.integers(0, 999))
def test_quantised_is_the_nearest(dtype, wide, seed):
    staged = values(seed, wide)
    found, scales = quantise(staged, dtype)
    every = codes(dtype).double()
    every = every[torch.isfinite(every)]
    for layer in range(2):
        for kv in (0, 1):
            for head in range(3):
                given_ = staged[layer, kv, :, head].double()
                scale = given_.abs().max() / torch.finfo(TORCH[dtype]).max
                assert scales[layer, kv, head].double() == pytest.approx(float(scale), rel=1e-6)
                for x, y in zip(given_.flatten(), found[layer, kv, :, head].flatten().double(), strict=True):
                    best = (every * scale - x).abs().min()
                    # Which of two that are as near is free, so is the last bit of the scale.
                    assert abs(y * scale - x) <= best + 1e-6 * abs(x)


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("dtype", FP8)
def test_dequantised_is_value_times_scale(dtype, wide):
    every = codes(dtype)
    staged = every.view(1, 1, 16, 1, 16).repeat(2, 2, 1, 3, 1)
    scales = torch.from_numpy(np.random.default_rng(1).uniform(1e-3, 0.1, (2, 2, 3))).float()
    for given_, used in ((scales, scales), (None, torch.ones(2, 2, 3))):
        found = dequantise(staged, wide, given_)
        for layer in range(2):
            for kv in (0, 1):
                for head in range(3):
                    expected = (every.float() * used[layer, kv, head]).to(TORCH[wide])
                    got = found[layer, kv, :, head].flatten()
                    assert torch.equal(torch.isnan(got), torch.isnan(expected))
                    assert torch.equal(got.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", FP8)
def test_dequantised_without_a_nan(dtype):
    """The path that moves bits: the test above has NaN in every chunk."""
    every = codes(dtype)
    finite = every[torch.isfinite(every.float())]
    staged = finite.view(1, 1, -1, 1, 1).repeat(1, 2, 1, 2, 1)
    scales = torch.tensor([[[0.3, 2.0], [1.7, 1e-4]]])
    found = dequantise(staged, "float32", scales)
    assert torch.equal(found, finite.float().view(1, 1, -1, 1, 1) * scales[:, :, None, :, None])


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("dtype", FP8)
@FEW
@given(seed=st.integers(0, 999))
def test_round_trip_is_within_the_formats_error(dtype, wide, seed):
    staged = values(seed, wide)
    narrow, scales = quantise(staged, dtype)
    error = (dequantise(narrow, wide, scales).double() - staged.double()).abs()
    relative, least = BOUNDS[dtype]
    x, s = staged.double().abs(), scales.double()[:, :, None, :, None]
    bound = torch.maximum(x * relative, s * least)
    # of the wide dtype: half a step of a value up to 1 + relative times as large, or of its subnormals
    tiny = torch.finfo(TORCH[wide]).smallest_normal * WIDE[wide]
    rounding = (1 + relative) * x * WIDE[wide] + tiny
    assert bool((error <= bound * (1 + 1e-5) + rounding).all())


def test_chunks_change_nothing(monkeypatch):
    staged = values(3, "bfloat16", tokens=37)
    whole, scales = quantise(staged, "fp8_e4m3")
    wide = dequantise(whole, "bfloat16", scales)
    monkeypatch.setattr(fp8, "_CHUNK_ELEMENTS", 3 * 4 * 5)
    parts, same = quantise(staged, "fp8_e4m3")
    assert torch.equal(scales, same)
    assert raw(whole) == raw(parts)
    assert raw(dequantise(parts, "bfloat16", same)) == raw(wide)


@pytest.mark.parametrize("wide", WIDE)
@FEW
@given(seed=st.integers(0, 999))
def test_magnitudes(wide, seed):
    staged = values(seed, wide)
    assert torch.equal(magnitudes(staged), staged.abs().amax((2, 4)).float())


def test_a_head_of_zeros_and_a_head_of_dust():
    staged = torch.zeros(1, 2, 2, 2, 2)
    staged[:, :, :, 1] = 1e-44
    narrow, scales = quantise(staged, "fp8_e4m3")
    assert scales[:, :, 0].eq(1).all()
    assert scales[:, :, 1].gt(0).all()
    assert not dequantise(narrow, "float32", scales)[:, :, :, 0].any()


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_no_scale_for_what_is_not_finite(bad):
    staged = torch.ones(2, 2, 3, 4, 5, dtype=torch.bfloat16)
    staged[1, 0, 2, 3, 4] = bad
    with pytest.raises(ValueError, match=r"layer 1, K, head 3 .* not finite"):
        quantise(staged, "fp8_e4m3")


def test_given_scales_clamp():
    staged = torch.tensor([1000.0, -1000.0, 3.0, float("inf")]).view(1, 1, 1, 1, 4).repeat(1, 2, 1, 1, 1)
    for dtype, most in (("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)):
        narrow, scales = quantise(staged, dtype, torch.full((1, 2, 1), 1000.0 / 2 / most))
        back = dequantise(narrow, "float32", scales)[0, 0, 0, 0]
        assert back.tolist() == pytest.approx([500, -500, 3.0, 500], rel=0.07)


@pytest.mark.parametrize("scales", [torch.ones(2, 2, 3), torch.zeros(2, 2, 4), torch.ones(2, 2, 4).double()])
def test_scales_of_another_form(scales):
    staged = torch.ones(2, 2, 3, 4, 5)
    with pytest.raises(ValueError, match="scales"):
        quantise(staged, "fp8_e4m3", scales)
    with pytest.raises(ValueError, match="scales"):
        dequantise(staged.to(torch.float8_e4m3fn), "bfloat16", scales)


def test_float16_cannot_hold_it():
    with pytest.raises(ValueError, match="not finite"):
        convert(torch.full((1, 2, 1, 1, 1), 1e6, dtype=torch.bfloat16), "float16")


@pytest.mark.parametrize("after", DTYPES)
@pytest.mark.parametrize("before", DTYPES)
def test_converted_into_a_buffer(before, after):
    staged, scales = convert(values(6, "float16"), before)
    buffer = torch.empty(staged.shape, dtype=TORCH[after])
    made, used = convert(staged, after, scales, out=buffer)
    alone, told = convert(staged, after, scales)
    assert made.data_ptr() == buffer.data_ptr()
    assert raw(buffer) == raw(alone)
    assert (used is None) == (told is None) == (after not in FP8)
    with pytest.raises(ValueError, match="a result in"):
        convert(staged, after, scales, out=torch.empty(2, 2, 5, 3, 5, dtype=TORCH[after]))


def test_fp8_to_the_same_fp8_with_other_scales():
    staged = values(5, "bfloat16")
    narrow, scales = quantise(staged, "fp8_e5m2")
    same, kept = convert(narrow, "fp8_e5m2", scales)
    assert same is narrow
    assert kept is scales
    other, used = convert(narrow, "fp8_e5m2", scales, scales * 4)
    assert used is not None
    back, told = dequantise(other, "float32", used), dequantise(narrow, "float32", scales)
    assert bool(((back - told).abs() <= told.abs() / 8 + scales[:, :, None, :, None] * 2**-14).all())


@FEW
@given(data=st.data(), seed=st.integers(0, 99))
def test_repack_from_any_dtype_to_any_other(data, seed):
    src_spec = data.draw(specs(layers=2, heads=2, head_dim=4, pages=3, page_size=2, first_head=0))
    dst_dtype = data.draw(st.sampled_from(DTYPES))
    dst_spec = PoolSpec(2, 2, 4, pages=2, page_size=3, dtype=dst_dtype)
    src, dst, at = normal(src_spec, seed), KVPool(dst_spec), Place.of([2, 0, 1])
    dst_at = Place.of([1, 0])
    (scales,) = repacking.repack([src], at, [dst], dst_at, 5)
    assert (scales is not None) == (dst_dtype in FP8)
    relative = BOUNDS.get(dst_dtype, (0, 0))[0] + WIDE.get(dst_dtype, 0)
    for layer in range(2):
        for kv in (0, 1):
            for head in range(2):
                scale = 1.0 if scales is None else float(scales[layer, kv, head])
                least = 2.0**-10 * scale if scales is not None else 1e-6
                for token in range(5):
                    x = head_of(src, at, token, layer, kv, head).double()
                    y = head_of(dst, dst_at, token, layer, kv, head).double() * scale
                    assert bool(((x - y).abs() <= x.abs() * relative * (1 + 1e-5) + least).all())


@pytest.mark.parametrize("buffer_bytes", [1, 1 << 22])
def test_scales_follow_their_heads(monkeypatch, buffer_bytes):
    """bf16 at TP 2 to fp8 at TP 4 and back to TP 1: each head with the scales of its own rank."""
    monkeypatch.setattr(repacking, "_BUFFER_BYTES", buffer_bytes)
    shape = KVShape(layers=2, kv_heads=4, head_dim=8)

    def pools(tp: int, dtype: str) -> list[KVPool]:
        specs_ = ranks_of(shape, KVLayout(page_size=4, dtype=dtype, tp=tp), pages=2)
        return [normal(spec, 7 + spec.first_head) for spec in specs_]

    src, middle, back = pools(2, "bfloat16"), pools(4, "fp8_e4m3"), pools(1, "bfloat16")
    at = Place.of([1, 0])
    scales = repacking.repack(src, at, middle, at, 8)
    assert repacking.repack(middle, at, back, at, 8, src_scales=scales) == (None,)
    for head in range(4):
        for layer in range(2):
            for kv in (0, 1):
                scale = float(scales[head][layer, kv, 0])
                for token in range(8):
                    x = head_of(src[head // 2], at, token, layer, kv, head).float()
                    y = head_of(back[0], at, token, layer, kv, head).float()
                    bound = torch.clamp(x.abs() * (2**-4 + 2**-8), min=scale * 2**-10)
                    assert bool(((x - y).abs() <= bound * (1 + 2**-4)).all())
    again = repacking.repack(middle, at, pools(2, "fp8_e4m3"), at, 8, src_scales=scales)
    assert torch.equal(torch.cat(again, dim=2), torch.cat(scales, dim=2))
