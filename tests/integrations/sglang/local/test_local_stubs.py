"""The import stubs and the plugin: they work without a GPU and stay out of everybody else's way."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kvferry.integrations.sglang.local import cpu_plugin
from kvferry.integrations.sglang.local.command import STUBS

USES = """
import triton, triton.language as tl, triton.language.extra.cuda
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import InterpolationMode as Same
import sgl_kernel

@triton.jit
def plain(x): return x + 1

@triton.autotune(configs=[triton.Config({"BLOCK": 1})], key=["n"])
@triton.jit(do_not_specialize=["n"])
def tuned(x): return x + 2

assert plain(1) == 2 and tuned(1) == 3
assert (triton.cdiv(5, 2), triton.next_power_of_2(5)) == (3, 8)
assert tl.constexpr(4).value == 4
assert Same is InterpolationMode and InterpolationMode("bicubic").name == "BICUBIC"
class Derived(triton.runtime.Autotuner): pass
try:
    sgl_kernel.rmsnorm(1)
except NotImplementedError as error:
    assert "rmsnorm" in str(error)
else:
    raise SystemExit("a kernel ran")
"""


def python(script: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_stubs_import_decorate_and_refuse_to_compute() -> None:
    done = python(USES, PYTHONPATH=str(STUBS))
    assert done.returncode == 0, done.stderr


def test_the_plugin_leaves_workers_alone_that_kvferry_did_not_start() -> None:
    done = python(
        "import sys; from kvferry.integrations.sglang.local.cpu_plugin import load; load();"
        "sys.exit('sglang' in sys.modules)",
        KVFERRY_LOCAL_CPU="",
    )
    assert done.returncode == 0, done.stderr


def test_buffers_are_labelled_dram_and_the_original_still_checks_them() -> None:
    def original(kinds: list[str], expected_len: int) -> list[str]:
        if len(kinds) != expected_len:
            raise ValueError("length mismatch")
        return kinds

    assert cpu_plugin.label_dram(original, None, 2) == ["DRAM", "DRAM"]
    assert cpu_plugin.label_dram(original, ["VRAM"], 1) == ["DRAM"]
    with pytest.raises(ValueError, match="mismatch"):
        cpu_plugin.label_dram(original, ["VRAM"], 2)


def test_a_sender_is_told_to_take_numpy_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sender:
        supports_host_tensor_indices = True

    monkeypatch.setitem(sys.modules, cpu_plugin._MOONCAKE, SimpleNamespace(MooncakeKVSender=Sender))
    cpu_plugin.send_numpy_indices(Sender, SimpleNamespace(value="mooncake"), SimpleNamespace(value="manager"))
    assert Sender.supports_host_tensor_indices
    in_its_place = object()
    cpu_plugin.send_numpy_indices(
        in_its_place, SimpleNamespace(value="mooncake"), SimpleNamespace(value="sender")
    )
    assert Sender.supports_host_tensor_indices is False


def test_a_hook_whose_target_is_missing_is_noticed() -> None:
    assert cpu_plugin._exists("json", "JSONDecoder.decode")
    assert not cpu_plugin._exists("json", "JSONDecoder.nothing")
    assert not cpu_plugin._exists("no_such_module_at_all", "x")
