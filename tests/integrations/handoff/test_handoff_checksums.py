"""One checksum for each page of the destination, against a loop over tokens."""

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.handoff.checksums import CHECKSUM_BYTES, differing, page_checksums
from kvferry.integrations.transports.kernels.tensors import DTYPES

shapes = st.tuples(*(st.integers(1, most) for most in (3, 40, 3, 4)))


def random_kv(shape: tuple[int, int, int, int], dtype: str, seed: int) -> torch.Tensor:
    layers, tokens, heads, head_dim = shape
    generator = torch.Generator().manual_seed(seed)
    nbytes = layers * 2 * tokens * heads * head_dim * DTYPES[dtype].itemsize
    raw = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)
    return raw.view(DTYPES[dtype]).view(layers, 2, tokens, heads, head_dim)


def slowly(staged: torch.Tensor, first: int, page_size: int) -> list[bytes]:
    """By page: the bytes of its tokens, layer by layer, K then V, token by token."""
    pages: dict[int, bytes] = {}
    for layer in staged.view(torch.uint8):
        for plane in layer:
            for token, values in enumerate(plane):
                page = (first + token) // page_size
                pages[page] = pages.get(page, b"") + bytes(values.flatten().tolist())
    return [pages[page] for page in sorted(pages)]


@given(shapes, st.sampled_from(sorted(DTYPES)), st.integers(0, 40), st.integers(1, 20), st.integers(0, 99))
def test_a_checksum_is_of_the_bytes_of_a_page_in_their_order(shape, dtype, first, page_size, seed):
    staged = random_kv(shape, dtype, seed)
    expected = b"".join(map(xxhash.xxh3_64_digest, slowly(staged, first, page_size)))
    assert page_checksums(staged, first, page_size) == expected


@given(shapes, st.integers(0, 40), st.integers(1, 20), st.data())
def test_a_wrong_bit_is_found_in_its_page(shape, first, page_size, data):
    staged = random_kv(shape, "float16", 1)
    damaged = staged.clone()
    raw = damaged.view(torch.uint8)
    where = [data.draw(st.integers(0, size - 1)) for size in raw.shape]
    raw[tuple(where)] ^= 1 << data.draw(st.integers(0, 7))
    good, bad = (page_checksums(one, first, page_size) for one in (staged, damaged))
    assert len(good) == len(bad)
    assert differing(good, bad) == (first + where[2]) // page_size - first // page_size
    assert differing(good, good) is None
    wrong = [good[at : at + 8] != bad[at : at + 8] for at in range(0, len(good), CHECKSUM_BYTES)]
    assert sum(wrong) == 1


@pytest.mark.parametrize("staged", [torch.zeros(2, 2, 8, 4), torch.zeros(2, 2, 4, 8, 6).transpose(2, 3)])
def test_another_form_is_refused(staged):
    with pytest.raises(ValueError, match="staged KV"):
        page_checksums(staged, 0, 4)
