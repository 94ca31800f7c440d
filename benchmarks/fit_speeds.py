"""Fit prior worker speeds from a latency grid and print them as TOML.

    python benchmarks/fit_speeds.py GRID.csv.gz > configs/speeds.toml

GRID has the columns model, system, tp, kind (prefill, prefill_prefix, decode), batch_or_gen_tokens,
new_tokens_per_seq_or_ctx_tokens, prefix, context and latency_ms, as aiconfigurator-core 0.12.0 predicts
them from its measured SGLang 0.5.14 kernel tables. Fitted, by least squares on relative errors and with
no negative coefficient:

    prefill_s = a + b * n + c * n * (cached + n / 2)        over a batch: n and n * (...) are summed
    decode_step_s = base + per_sequence * B + per_context_token * S
"""

import csv
import gzip
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# (model in the grid, hardware, tp): one usual deployment each. The first of a model is its default.
SETTINGS = [
    ("meta-llama/Meta-Llama-3.1-8B", "h200", 1),
    ("meta-llama/Meta-Llama-3.1-8B", "h100", 1),
    ("meta-llama/Meta-Llama-3.1-8B", "b200", 1),
    ("meta-llama/Meta-Llama-3.1-8B", "a100", 1),
    ("meta-llama/Meta-Llama-3.1-8B", "l40s", 1),
    ("Qwen/Qwen3-32B", "h200", 2),
    ("Qwen/Qwen3-32B", "h200", 4),
    ("Qwen/Qwen3-32B", "h100", 2),
    ("Qwen/Qwen3-32B", "h100", 4),
    ("Qwen/Qwen3-32B", "b200", 2),
    ("Qwen/Qwen3-32B", "a100", 4),
    ("Qwen/Qwen3-32B", "l40s", 4),
    ("meta-llama/Meta-Llama-3.1-70B", "h200", 4),
    ("meta-llama/Meta-Llama-3.1-70B", "h100", 4),
    ("meta-llama/Meta-Llama-3.1-70B", "b200", 4),
    ("meta-llama/Meta-Llama-3.1-70B", "a100", 8),
    ("Qwen/Qwen3-30B-A3B", "h200", 1),
    ("Qwen/Qwen3-30B-A3B", "h100", 1),
    ("Qwen/Qwen3-235B-A22B-FP8", "h200", 8),
    ("Qwen/Qwen3-235B-A22B-FP8", "h100", 8),
    ("deepseek-ai/DeepSeek-V3", "h200", 8),
    ("deepseek-ai/DeepSeek-V3", "b200", 8),
    ("openai/gpt-oss-120b", "h200", 4),
    ("openai/gpt-oss-120b", "h100", 4),
]
SOURCE = "fitted to aiconfigurator-core 0.12.0 (Apache-2.0), from its measured SGLang 0.5.14 kernel tables"


def relative_nnls(terms: Array, seconds: Array) -> tuple[Array, Array]:
    """Coefficients >= 0 that minimise the relative error, and the relative errors left (absolute)."""
    scaled = terms / seconds[:, None]
    used = list(range(terms.shape[1]))
    while True:
        solution = np.linalg.lstsq(scaled[:, used], np.ones(len(seconds)), rcond=None)[0]
        if (solution >= 0).all():
            break
        used.pop(int(solution.argmin()))
    full = np.zeros(terms.shape[1])
    full[used] = solution
    return full, np.abs(terms @ full - seconds) / seconds


def fit(rows: list[dict[str, str]]) -> dict[str, float]:
    prefill, prefill_s, decode, decode_s = [], [], [], []
    for row in rows:
        batch, seconds = float(row["batch_or_gen_tokens"]), float(row["latency_ms"]) / 1e3
        if row["kind"] in ("prefill", "prefill_prefix"):
            new, cached = float(row["new_tokens_per_seq_or_ctx_tokens"]), float(row["prefix"])
            prefill.append([1, batch * new, batch * new * (cached + new / 2)])
            prefill_s.append(seconds)
        elif row["kind"] == "decode":
            decode.append([1, batch, batch * float(row["context"])])
            decode_s.append(seconds)
    p, p_error = relative_nnls(np.array(prefill), np.array(prefill_s))
    d, d_error = relative_nnls(np.array(decode), np.array(decode_s))
    return {
        "prefill_base_ms": p[0] * 1e3,
        "prefill_us_per_token": p[1] * 1e6,
        "prefill_ns_per_token2": p[2] * 1e9,
        "decode_base_ms": d[0] * 1e3,
        "decode_us_per_sequence": d[1] * 1e6,
        "decode_ns_per_context_token": d[2] * 1e9,
        "prefill_error_median": float(np.median(p_error)),
        "prefill_error_p90": float(np.quantile(p_error, 0.9)),
        "decode_error_median": float(np.median(d_error)),
        "decode_error_p90": float(np.quantile(d_error, 0.9)),
    }


def main(grid: Path) -> None:
    with gzip.open(grid, "rt") as file:
        rows = list(csv.DictReader(file))
    print("# Prior speeds, until a worker's own counters replace them; written by benchmarks/fit_speeds.py.")
    print("#   prefill_s = base + per_token * n + per_token2 * n * (cached + n / 2)")
    print("#   decode_step_s = base + per_sequence * sequences + per_context_token * context tokens")
    print("# *_error_*: relative error of the fit against the grid. The grid itself is a prediction: against")
    print("# measured serving points its time per output token errs by 21% (median), its TTFT by more.")
    for model, hardware, tp in SETTINGS:
        mine = [r for r in rows if r["model"] == model and r["tp"] == str(tp)]
        mine = [r for r in mine if r["system"].removesuffix("_sxm") == hardware]
        settings = sorted({(r["moe_tp"], r["moe_ep"]) for r in mine})
        mine = [r for r in mine if (r["moe_tp"], r["moe_ep"]) == settings[-1]]
        print(f'\n[[speed]]\nmodel = "{model}"\nhardware = "{hardware}"\ntp = {tp}')
        for key, value in fit(mine).items():
            print(f"{key} = {value:.4g}")
        moe_tp, moe_ep = settings[-1]
        experts = f", experts TP{moe_tp} EP{moe_ep}" if moe_ep else ""
        print(f'source = "{SOURCE}{experts}"')


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: fit_speeds.py GRID.csv.gz")
    main(Path(sys.argv[1]))
