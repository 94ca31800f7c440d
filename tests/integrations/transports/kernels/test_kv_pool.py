"""KVPool: what is registered is what the spec says."""

import mmap
import resource
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kv_slow import FEW, filled, memory, raw, specs

from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.pool_spec import PoolSpec

SPEC = PoolSpec(2, 3, 4, pages=5, page_size=2, dtype="float16")


@FEW
@given(data=st.data(), seed=st.integers(0, 9))
def test_bytes_are_where_the_spec_says(data, seed):
    spec = data.draw(specs())
    pool = filled(spec, seed)
    assert tuple(region.nbytes for region in pool.regions) == spec.region_bytes
    page, layer = data.draw(st.integers(0, spec.pages - 1)), data.draw(st.integers(0, spec.layers - 1))
    kv, slot = data.draw(st.integers(0, 1)), data.draw(st.integers(0, spec.page_size - 1))
    head = data.draw(st.integers(0, spec.heads - 1))
    start = spec.offset(page, layer, kv, slot, head)
    region = memory(pool)[spec.region(layer, kv)]
    told = raw(pool.blocks(layer, kv)[page, slot, head])
    assert region[start : start + spec.head_bytes] == told
    address = pool.blocks(layer, kv)[page, slot, head].data_ptr()
    assert address == pool.regions[spec.region(layer, kv)].address + start


def test_a_workers_own_tensors():
    tensors = [torch.ones(5, 2, 3, 4, dtype=torch.float16) for _ in range(4)]
    pool = KVPool(SPEC, tensors=tensors)
    assert [region.address for region in pool.regions] == [tensor.data_ptr() for tensor in tensors]
    assert {(region.kind, region.device) for region in pool.regions} == {("cpu", 0)}
    pool.touch()
    assert all(bool((tensor == 1).all()) for tensor in tensors)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ([torch.ones(5, 2, 3, 4, dtype=torch.float16)] * 3, "3 tensors for 4 regions"),
        ([torch.ones(5, 2, 3, 4)] * 4, "tensor 0 is torch.float32"),
        ([torch.ones(5, 2, 4, 3, dtype=torch.float16)] * 4, r"\[5, 2, 4, 3\]"),
        ([torch.ones(5, 2, 4, 3, dtype=torch.float16).mT] * 4, "must be contiguous"),
        ([torch.ones(5, 2, 3, 4, dtype=torch.float16, device="meta")] * 4, "on meta, not on cpu"),
    ],
)
def test_tensors_of_another_form(tensors, said):
    with pytest.raises(ValueError, match=said):
        KVPool(SPEC, tensors=tensors)


def test_a_dtype_without_tensors():
    with pytest.raises(ValueError, match="no tensor of int8; can be float32"):
        KVPool(PoolSpec(1, 1, 1, pages=1, page_size=1, dtype="int8"))


def test_touched_memory_is_there():
    spec = PoolSpec(1, 8, 128, pages=1024, page_size=4, dtype="bfloat16")
    maps = [mmap.mmap(-1, nbytes) for nbytes in spec.region_bytes]
    for each in maps:
        each.madvise(mmap.MADV_NOHUGEPAGE)
    tensors = [torch.frombuffer(each, dtype=torch.bfloat16).view(1024, 4, 8, 128) for each in maps]
    pool = KVPool(spec, tensors=tensors)
    pages = sum(spec.region_bytes) // mmap.PAGESIZE

    def faults(work) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        work()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    assert faults(pool.touch) >= pages
    assert faults(lambda: [tensor.zero_() for tensor in tensors]) < pages / 10


def test_without_torch_one_line_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "try:\n    import kvferry.integrations.transports.pool\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "Missing KV pools need torch: pip install 'kvferry[transports]'\n"
