"""How fast KV is gathered, scattered and converted, against a plain copy of as many bytes in the same run.

    python benchmarks/repack.py [--mib 64] [--rounds 7] [--device cpu|cuda] [--json]

16 layers, 8 heads of 128, bfloat16, scattered pages; on one CPU thread, or on a GPU, where gather and
scatter are timed in torch's form and in Triton's (the default is a GPU where there is one). Milliseconds are
the least of the rounds, which take every case in turn; `x copy` is that over the time of a contiguous copy
of the bytes that the case reads. `repack` is gather, conversion and scatter together.
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kvferry.integrations.transports.kernels import torch_pages
from kvferry.integrations.transports.kernels.convert import convert
from kvferry.integrations.transports.kernels.repack import repack
from kvferry.integrations.transports.kernels.selection import Selection
from kvferry.integrations.transports.kernels.staged import gather
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec, ranks_of
from kvferry.policy.kvshape import KVShape
from kvferry.policy.layout import KVLayout, LayoutOrder

SHAPE = KVShape(layers=16, kv_heads=8, head_dim=128)
TOKEN_BYTES = 2 * SHAPE.layers * SHAPE.kv_heads * SHAPE.head_dim * 2
PLAIN = KVLayout(page_size=16)
REPACKS = (
    ("page 16 to 64", PLAIN, KVLayout(page_size=64)),
    ("page 1 to 16", KVLayout(page_size=1), PLAIN),
    ("layer_first to page_first", PLAIN, KVLayout(page_size=16, order=LayoutOrder.PAGE_FIRST)),
    ("page_first to layer_first", KVLayout(page_size=16, order=LayoutOrder.PAGE_FIRST), PLAIN),
    ("TP2 to TP4", KVLayout(page_size=16, tp=2), KVLayout(page_size=16, tp=4)),
    ("TP4 to TP1", KVLayout(page_size=16, tp=4), PLAIN),
    ("bf16 to fp8_e4m3, page 16", PLAIN, KVLayout(page_size=16, dtype="fp8_e4m3")),
)
Case = tuple[str, Callable[[], object]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tokens = given.mib * 2**20 // TOKEN_BYTES // 64 * 64
    if tokens < 64:
        parser.error(f"--mib {given.mib}: must be at least {64 * TOKEN_BYTES / 2**20:.0f}")
    source = torch.ones(tokens * TOKEN_BYTES // 8, dtype=torch.int64, device=given.device)
    target = torch.zeros_like(source)
    cases: list[Case] = [("copy", lambda: target.copy_(source))]
    cases += copies(tokens, given.device) + conversions(tokens, given.device)
    cases += [repacking(name, a, b, tokens, given.device) for name, a, b in REPACKS]
    spent: dict[str, list[float]] = {name: [] for name, _ in cases}
    console = Console(stderr=True)
    for turn in track(range(given.rounds + 1), "Rounds", console=console, disable=not console.is_terminal):
        for name, work in cases:
            took_s = timed(work, given.device)
            if turn:  # the first makes views, compiles kernels and touches memory
                spent[name].append(took_s)
    least_s = {name: min(times) for name, times in spent.items()}
    show(least_s, tokens, given.device, given.json)


def copies(tokens: int, device: str) -> list[Case]:
    """Gather and scatter by each form, of each order and three page sizes."""
    cases: list[Case] = []
    for order in LayoutOrder:
        for size in (1, 16, 64) if order is LayoutOrder.LAYER_FIRST else (16,):
            pool, at = scattered(KVLayout(page_size=size, order=order), tokens, device)[0]
            chosen = Selection.of(pool.spec, at, tokens)
            for form, module in forms(device):
                staged = gather(pool, at, tokens)
                name = f"{order}, page {size}, {form}"
                cases.append((f"gather {name}", bound(module.gather, pool, chosen, staged)))
                cases.append((f"scatter {name}", bound(module.scatter, pool, chosen, staged)))
    return cases


def forms(device: str) -> list[tuple[str, ModuleType]]:
    if device == "cpu" or importlib.util.find_spec("triton") is None:
        return [("torch", torch_pages)]
    from kvferry.integrations.transports.kernels import triton_pages

    return [("torch", torch_pages), ("triton", triton_pages)]


def conversions(tokens: int, device: str) -> list[Case]:
    wide = torch.randn(SHAPE.layers, 2, tokens, SHAPE.kv_heads, SHAPE.head_dim, device=device).bfloat16()
    half = torch.zeros_like(wide, dtype=torch.float16)
    back = torch.zeros_like(wide)
    cases: list[Case] = [("convert bfloat16 to float16", bound(convert, wide, "float16", None, None, half))]
    for dtype in ("fp8_e4m3", "fp8_e5m2"):
        narrow, scales = convert(wide, dtype)
        made = torch.empty_like(narrow)
        cases.append((f"convert bfloat16 to {dtype}", bound(convert, wide, dtype, None, None, made)))
        cases.append((f"convert {dtype} to bfloat16", bound(convert, narrow, "bfloat16", scales, None, back)))
    return cases


def repacking(name: str, before: KVLayout, after: KVLayout, tokens: int, device: str) -> Case:
    src, dst = scattered(before, tokens, device), scattered(after, tokens, device)
    sides = ([pool for pool, _ in side] for side in (src, dst))
    return f"repack {name}", bound(repack, next(sides), src[0][1], next(sides), dst[0][1], tokens)


def scattered(layout: KVLayout, tokens: int, device: str) -> list[tuple[KVPool, Place]]:
    """Every rank's pool, twice as large as needed, and the same random pages in each."""
    count = tokens // layout.page_size
    pages = np.random.default_rng(0).permutation(2 * count)[:count]
    specs: tuple[PoolSpec, ...] = ranks_of(SHAPE, layout, 2 * count)
    pools = [KVPool(spec, device) for spec in specs]
    return [(pool, Place.of(pages)) for pool in pools]


def bound(work: Callable[..., object], *arguments: object) -> Callable[[], object]:
    return lambda: work(*arguments)


def timed(work: Callable[[], object], device: str) -> float:
    """Seconds until the work is done, on the GPU too."""
    settle = torch.cuda.synchronize if device != "cpu" else lambda: None
    settle()
    started = time.perf_counter()
    work()
    settle()
    return time.perf_counter() - started


def read_bytes(name: str, total: int) -> int:
    return total // 2 if name.startswith("convert fp8") else total


def show(least_s: dict[str, float], tokens: int, device: str, as_json: bool) -> None:
    total = tokens * TOKEN_BYTES
    per_byte = least_s["copy"] / total
    ratios = {name: took_s / (per_byte * read_bytes(name, total)) for name, took_s in least_s.items()}
    if as_json:
        rows = [{"case": name, "took_s": least_s[name], "x_copy": ratios[name]} for name in least_s]
        print(json.dumps({"device": device, "bytes": total, "torch": torch.__version__, "rows": rows}))
        return
    table = Table(
        title=f"{total / 2**20:.0f} MiB on {device}, torch {torch.__version__}", title_justify="left"
    )
    for column in ("case", "ms", "GB/s", "x copy"):
        table.add_column(column, justify="left" if column == "case" else "right", no_wrap=True)
    for name, took_s in least_s.items():
        rate = read_bytes(name, total) / took_s / 1e9
        table.add_row(name, f"{took_s * 1e3:.1f}", f"{rate:.1f}", f"{ratios[name]:.1f}")
    Console(width=80).print(table)


if __name__ == "__main__":
    main()
