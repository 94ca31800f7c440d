"""Batches that a queue holds, in layer order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.models.moves.chunks import cut
from kvferry.models.moves.pieces import Pieces


def _pieces(sizes, ends):
    nbytes = np.array(sizes, dtype=np.int64)
    offset = np.cumsum(nbytes) - nbytes
    zeros = np.zeros(len(nbytes), dtype=np.int64)
    return Pieces(zeros, offset, zeros, offset + 7, nbytes, np.array(ends, dtype=np.int64))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_chunks_keep_limits_and_order(data):
    sizes = data.draw(st.lists(st.integers(1, 40), max_size=50))
    ends = [*sorted(data.draw(st.lists(st.integers(0, len(sizes)), max_size=5))), len(sizes)]
    most = data.draw(st.integers(1, 20))
    most_bytes = data.draw(st.none() | st.integers(1, 100))
    each = data.draw(st.none() | st.integers(1, 3))
    pieces = _pieces(sizes, ends)
    chunks = list(cut(pieces, most, most_bytes, each))
    # every byte in its order, and the layer that it is of
    layer_of_byte = np.repeat([pieces.layer_of(i) for i in range(len(sizes))], sizes)
    at, bytes_of_layer = 0, np.bincount(layer_of_byte.astype(int), minlength=len(ends))
    before = 0
    for chunk in chunks:
        assert 1 <= len(chunk.pieces) <= most
        assert most_bytes is None or chunk.pieces.moved_bytes <= most_bytes
        for i in range(len(chunk.pieces)):
            assert chunk.pieces.src_offset[i] == at
            assert chunk.pieces.dst_offset[i] == at + 7
            at += int(chunk.pieces.nbytes[i])
            assert layer_of_byte[at - 1] <= chunk.after_layer
        assert layer_of_byte[at - 1] == chunk.after_layer >= before
        if each is not None:
            assert layer_of_byte[at - chunk.pieces.moved_bytes] // each == chunk.after_layer // each
        before = chunk.after_layer
        assert np.cumsum(bytes_of_layer)[: chunk.finishes].max(initial=0) <= at
        assert chunk.finishes == len(ends) or np.cumsum(bytes_of_layer)[chunk.finishes] > at
    assert at == sum(sizes)


def test_full_chunks_unless_layers_part_them():
    pieces = _pieces([8] * 3000, [1000, 2000, 3000])
    assert [len(chunk.pieces) for chunk in cut(pieces)] == [1024, 1024, 952]
    assert [chunk.after_layer for chunk in cut(pieces)] == [1, 2, 2]
    assert [chunk.finishes for chunk in cut(pieces)] == [1, 2, 3]
    assert [len(chunk.pieces) for chunk in cut(pieces, layers_each=1)] == [1000, 1000, 1000]
    assert [chunk.after_layer for chunk in cut(pieces, layers_each=2)] == [1, 1, 2]
    assert [chunk.pieces.moved_bytes for chunk in cut(pieces, most_bytes=9000)] == [8192, 8192, 7616]


def test_no_pieces_no_chunks_and_limits_that_hold_nothing():
    assert list(cut(_pieces([], [0, 0]))) == []
    for limits in ({"most_descriptors": 0}, {"most_bytes": 0}, {"layers_each": 0}):
        with pytest.raises(ValueError, match="holds nothing"):
            list(cut(_pieces([1], [1]), **limits))
