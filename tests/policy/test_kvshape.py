"""Laws of KV sizes, and the two figures that were measured."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvferry.policy.kvshape import ELEMENT_BYTES, KVShape, element_bytes, padded_tokens

DTYPES = st.sampled_from(sorted(ELEMENT_BYTES))
TOKENS = st.integers(0, 300_000)
TPS = st.sampled_from([1, 2, 4, 8, 16])
PAGES = st.sampled_from([1, 16, 32, 64, 128])


@st.composite
def shapes(draw: st.DrawFn) -> KVShape:
    layers = draw(st.integers(1, 128))
    window_layers = draw(st.integers(0, layers))
    mla = draw(st.booleans())
    return KVShape(
        layers=layers,
        kv_heads=1 if mla else draw(st.integers(1, 64)),
        head_dim=draw(st.sampled_from([64, 128, 256, 576])),
        mla=mla,
        window_layers=window_layers,
        window_tokens=draw(st.integers(1, 8192)) if window_layers else 0,
        window_kv_heads=draw(st.integers(0, 16)) if window_layers else 0,
        window_head_dim=draw(st.sampled_from([0, 128, 256])) if window_layers else 0,
        fixed_bytes=draw(st.sampled_from([0, 1_000_000])),
    )


@given(shapes(), TOKENS, st.integers(0, 5000), DTYPES, TPS, PAGES)
def test_more_tokens_never_take_or_move_fewer_bytes(
    shape: KVShape, tokens: int, more: int, dtype: str, tp: int, page: int
) -> None:
    assert shape.kv_bytes(tokens + more, dtype, tp, page) >= shape.kv_bytes(tokens, dtype, tp, page)
    held = min(100, tokens)  # beyond the prompt nothing is held: that would grow with it to a whole page
    assert shape.moved_bytes(tokens + more, held, dtype, tp, page) >= shape.moved_bytes(
        tokens, held, dtype, tp, page
    )


@given(shapes(), TOKENS, DTYPES, TPS, PAGES)
def test_more_ranks_and_larger_pages_never_move_fewer_bytes(
    shape: KVShape, tokens: int, dtype: str, tp: int, page: int
) -> None:
    moved = shape.moved_bytes(tokens, 0, dtype, tp, page)
    assert shape.moved_bytes(tokens, 0, dtype, 2 * tp, page) >= moved
    assert shape.moved_bytes(tokens, 0, dtype, tp, 2 * page) >= moved


@given(shapes(), TOKENS, TOKENS, DTYPES, TPS, PAGES)
def test_what_decode_holds_is_not_moved(
    shape: KVShape, tokens: int, held: int, dtype: str, tp: int, page: int
) -> None:
    moved = shape.moved_bytes(tokens, held, dtype, tp, page)
    assert moved <= shape.moved_bytes(tokens, 0, dtype, tp, page)
    assert moved <= shape.moved_bytes(tokens, max(held - page, 0), dtype, tp, page)
    if held >= tokens and tokens % page == 0:
        assert moved == 0


def test_a_held_part_of_a_page_is_moved_again() -> None:
    shape = KVShape(layers=2, kv_heads=1, head_dim=4)
    assert shape.moved_bytes(128, 63, "bf16", page_size=64) == shape.kv_bytes(128, "bf16")
    assert shape.moved_bytes(128, 64, "bf16", page_size=64) == shape.kv_bytes(64, "bf16")


@given(st.integers(1, 100), st.sampled_from([2, 4, 8, 16, 32]), TOKENS, DTYPES)
def test_mqa_is_at_most_gqa_is_at_most_mha(layers: int, groups: int, tokens: int, dtype: str) -> None:
    mqa, gqa, mha = (KVShape(layers, heads, 128).kv_bytes(tokens, dtype) for heads in (1, 32 // groups, 32))
    assert mqa <= gqa <= mha


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 8192), TOKENS, DTYPES, TPS, PAGES)
def test_a_window_never_takes_more_than_full_attention(
    layers: int, windowed: int, window: int, tokens: int, dtype: str, tp: int, page: int
) -> None:
    assume(windowed <= layers)
    full = KVShape(layers, 8, 128)
    mixed = KVShape(layers, 8, 128, window_layers=windowed, window_tokens=window)
    assert mixed.kv_bytes(tokens, dtype, tp, page) <= full.kv_bytes(tokens, dtype, tp, page)
    if tokens <= window:
        assert mixed.kv_bytes(tokens, dtype, tp, page) == pytest.approx(
            full.kv_bytes(tokens, dtype, tp, page), abs=1
        )
    ceiling = mixed.window_bytes(window, dtype, tp, page)
    assert mixed.window_bytes(tokens, dtype, tp, page) <= ceiling


@given(TOKENS, PAGES, st.integers(1, 8))
def test_rounding_adds_less_than_a_page_per_sequence(tokens: int, page: int, sequences: int) -> None:
    padded = padded_tokens(tokens, page, sequences)
    assert padded % page == 0
    assert tokens <= padded < tokens + page * sequences


def test_a_measured_move_was_twice_the_naive_size() -> None:
    """Qwen3-235B-A22B, TP8: 12.62 GB for 32,768 tokens (SGLang with Mooncake)."""
    shape = KVShape(layers=94, kv_heads=4, head_dim=128)
    assert shape.moved_bytes(32_768, 0, "bfloat16", tp=8) == 2 * shape.kv_bytes(32_768, "bfloat16")
    assert shape.moved_bytes(32_768, 0, "bfloat16", tp=8) / 1e9 == pytest.approx(12.62, abs=0.005)


def test_every_rank_gets_the_latent() -> None:
    shape = KVShape(layers=61, kv_heads=1, head_dim=576, mla=True)
    assert shape.bytes_per_token("bfloat16") == 70_272
    assert shape.moved_bytes(1, 0, "bfloat16", tp=8) == 8 * 70_272


def test_heads_of_each_kind_of_layer_replicate_on_their_own() -> None:
    gemma4 = KVShape(30, 2, 512, window_tokens=1024, window_layers=25, window_kv_heads=8, window_head_dim=256)
    assert gemma4.bytes_per_token("bf16", tp=4) == 2 * gemma4.bytes_per_token("bf16")
    assert gemma4.window_bytes(8192, "bf16", tp=4) == gemma4.window_bytes(8192, "bf16")


def test_an_unknown_dtype_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'auto'.*bfloat16"):
        element_bytes("auto")
    assert element_bytes("torch.float16") == 2


@pytest.mark.parametrize(
    "wrong",
    [{"kv_heads": 0}, {"head_dim": 0}, {"layers": -1}, {"window_layers": 3}, {"window_layers": 1}],
)
def test_an_impossible_shape_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="KV shape 'odd'"):
        KVShape(**{"layers": 2, "kv_heads": 8, "head_dim": 128, **wrong}, name="odd")
