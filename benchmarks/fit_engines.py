"""Fit the simulator's step times to a latency grid and print them as TOML.

    python benchmarks/fit_engines.py GRID.csv.gz LOG_FOLDER > configs/engines.toml

GRID has the columns model, system, tp, moe_tp, moe_ep, kind (prefill, prefill_prefix, decode, mixed),
batch_or_gen_tokens, new_tokens_per_seq_or_ctx_tokens, prefix, context and latency_ms, as
aiconfigurator-core 0.12.0 predicts them from its measured SGLang 0.5.14 kernel tables; settings that it
lacks come from those tables themselves (extra kvferry[silicon]). What is fitted, and how, is in
kvferry.models.simulator.step_fit. LOG_FOLDER is the run that benchmarks/fit_log.py reads.
"""

import csv
import gzip
import sys
from collections.abc import Mapping
from pathlib import Path

from fit_log import SOURCE as LOG_SOURCE
from fit_log import fit_log

from kvferry.models.model_catalogue import find_shape
from kvferry.models.simulator.silicon import silicon_samples
from kvferry.models.simulator.step_fit import Knots, StepFit, StepSample, fit_steps

# (model in the grid, GPU, tp): the first of a model is its default.
SETTINGS = [
    ("Qwen/Qwen3-32B", "h200", 2),
    ("Qwen/Qwen3-32B", "h200", 4),
    ("Qwen/Qwen3-32B", "h100", 2),
    ("Qwen/Qwen3-32B", "h100", 4),
    ("Qwen/Qwen3-32B", "b200", 2),
    ("Qwen/Qwen3-32B", "a100", 4),
    ("Qwen/Qwen3-32B", "l40s", 4),
    ("Qwen/Qwen3-32B-FP8", "h200", 1),
    ("meta-llama/Meta-Llama-3.1-8B", "h200", 1),
    ("meta-llama/Meta-Llama-3.1-8B", "h100", 1),
    ("meta-llama/Meta-Llama-3.1-8B", "b200", 1),
    ("meta-llama/Meta-Llama-3.1-8B", "a100", 1),
    ("meta-llama/Meta-Llama-3.1-8B", "l40s", 1),
    ("meta-llama/Meta-Llama-3.1-70B", "h200", 4),
    ("meta-llama/Meta-Llama-3.1-70B", "h200", 8),
    ("meta-llama/Meta-Llama-3.1-70B", "h100", 4),
    ("meta-llama/Meta-Llama-3.1-70B", "h100", 8),
    ("meta-llama/Meta-Llama-3.1-70B", "b200", 4),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", "h200", 2),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", "h100", 2),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", "h100", 4),
    ("Qwen/Qwen3-30B-A3B", "h200", 1),
    ("Qwen/Qwen3-30B-A3B", "h100", 1),
    ("Qwen/Qwen3-235B-A22B-FP8", "h200", 8),
    ("Qwen/Qwen3-235B-A22B-FP8", "h100", 8),
    ("deepseek-ai/DeepSeek-V3", "h200", 8),
    ("deepseek-ai/DeepSeek-V3", "b200", 8),
    ("openai/gpt-oss-120b", "h200", 4),
    ("openai/gpt-oss-120b", "h100", 4),
]
# Not in the grid: asked of the kernel tables.
TABLES = [("nvidia/Llama-3.1-70B-Instruct-FP8", "h100", 8), ("meta-llama/Llama-3.1-8B-FP8", "h200", 1)]
# GB of checkpoint (safetensors index of the Hugging Face repository) and of memory that nvidia-smi reports.
WEIGHTS_GB = {
    "Qwen/Qwen3-32B": 65.5,
    "Qwen/Qwen3-32B-FP8": 34.3,
    "meta-llama/Meta-Llama-3.1-8B": 16.1,
    "meta-llama/Llama-3.1-8B-FP8": 9.1,
    "meta-llama/Meta-Llama-3.1-70B": 141.1,
    "nvidia/Llama-3.1-70B-Instruct-FP8": 72.7,
    "Qwen/Qwen3-30B-A3B": 61.1,
    "Qwen/Qwen3-235B-A22B-FP8": 236.4,
    "deepseek-ai/DeepSeek-V3": 671.0,
    "openai/gpt-oss-120b": 65.2,
}
GPU_GB = {"h200": 150.7, "h100": 85.5, "b200": 192.2, "a100": 85.9, "l40s": 48.3}
MEMORY_SHARE = 0.87
SOURCE = "aiconfigurator-core 0.12.0 (Apache-2.0), from its measured SGLang 0.5.14 kernel tables"
HEAD = """\
# What the simulator's engines take for a step, and the KV room they have; written by
# benchmarks/fit_engines.py. The formula stands in models/simulator/steps.py.
#   decode, tokens     knots [count, ms] of D(decodes) and L(prefill tokens + decodes), lines between them
#   attention_ns       per token pair; context_ns: per context token; mixed_ms: prefill beside decodes
#   *_error            relative error of the fit against its samples: [median, 90th percentile]
#   kv_room_tokens     KV tokens a worker holds: kv_room says where the number comes from
# The grid itself is a prediction from measured kernels: against measured serving points its time per
# output token errs by 21% (median), its TTFT by more."""


def samples(rows: list[dict[str, str]]) -> list[StepSample]:
    """Steps of the grid, less the mixed ones that cannot be right: without decodes or of under 1,024
    prefill tokens (faster than the same prefill alone: a chunk's attention has no base cost there), and
    all of a model whose mixed steps do not feel the context (MLA)."""
    mixed = [row for row in rows if row["kind"] == "mixed"]
    felt = len({row["latency_ms"] for row in mixed}) > len(mixed) / 2
    found = []
    for row in rows:
        batch, n = int(row["batch_or_gen_tokens"]), int(row["new_tokens_per_seq_or_ctx_tokens"])
        p, context, seconds = int(row["prefix"]), int(row["context"]), float(row["latency_ms"]) / 1e3
        if row["kind"] in ("prefill", "prefill_prefix"):
            found.append(StepSample(0, 0.0, batch * n, batch * n * (p + n / 2), seconds))
        elif row["kind"] == "decode":
            found.append(StepSample(batch, float(batch * context), 0, 0.0, seconds))
        elif felt and batch and n >= 1024:  # the mean chunk of prompts of `context` tokens
            found.append(StepSample(batch, float(batch * context), n, n * context / 2, seconds))
    return found


def kv_room(model: str, gpu: str, tp: int) -> tuple[int, str]:
    """Tokens: (memory share of a GPU less its part of the weights) / KV bytes per token and GPU.

    Window layers have a pool of 0.8 as many tokens (SGLang's --swa-full-tokens-ratio).
    """
    shape = find_shape(model)
    window_bytes = 2 * shape.window_elements_per_token(tp)
    token_bytes = (shape.bytes_per_token("bfloat16", tp) + 0.8 * window_bytes) / tp
    free_gb = GPU_GB[gpu] * MEMORY_SHARE - WEIGHTS_GB[model] / tp
    text = (
        f"({MEMORY_SHARE:g} x {GPU_GB[gpu]:g} GB - {WEIGHTS_GB[model]:g} GB of weights / {tp})"
        f" / {token_bytes:.0f} B of bfloat16 KV per token and GPU"
    )
    return int(free_gb * 1e9 / token_bytes / 1000) * 1000, text


def table(
    setting: tuple[str, str, int],
    fit: StepFit,
    errors: Mapping[str, tuple[float, float]],
    room: tuple[int, str],
    source: str,
) -> str:
    model, gpu, tp = setting
    lines = ["", "[[engine]]", f'model = "{model}"', f'gpu = "{gpu}"', f"tp = {tp}"]
    lines += [f"decode = {_knots(fit.decode_s)}", f"tokens = {_knots(fit.tokens_s)}"]
    lines += [f"attention_ns = {fit.attention_s * 1e9:.4g}", f"context_ns = {fit.context_s * 1e9:.4g}"]
    lines += [f"mixed_ms = {fit.mixed_s * 1e3:.4g}"]
    lines += [f"{kind}_error = [{median:.3f}, {p90:.3f}]" for kind, (median, p90) in errors.items()]
    lines += [f"kv_room_tokens = {room[0]}", f'kv_room = "{room[1]}"', f'source = "{source}"']
    return "\n".join(lines)


def _knots(knots: Knots) -> str:
    return "[" + ", ".join(f"[{count}, {seconds * 1e3:.4g}]" for count, seconds in knots) + "]"


def main(grid: Path, log: Path) -> None:
    with gzip.open(grid, "rt") as file:
        rows = list(csv.DictReader(file))
    print(HEAD)
    for model, gpu, tp in SETTINGS:
        mine = [r for r in rows if (r["model"], r["tp"]) == (model, str(tp))]
        mine = [r for r in mine if r["system"].removesuffix("_sxm") == gpu]
        experts = max((r["moe_tp"], r["moe_ep"]) for r in mine)
        found = samples([r for r in mine if (r["moe_tp"], r["moe_ep"]) == experts])
        found = [s for s in found if s.decodes <= 512 and s.tokens + s.decodes <= 16384]
        fit = fit_steps(found)
        note = f", experts TP{experts[0]} EP{experts[1]}" if experts[1] else ""
        source = f"fitted to a grid from {SOURCE}{note}"
        print(table((model, gpu, tp), fit, fit.errors(found), kv_room(model, gpu, tp), source))
    for setting in TABLES:
        found = silicon_samples(*setting)
        fit = fit_steps(found)
        print(table(setting, fit, fit.errors(found), kv_room(*setting), f"fitted to {SOURCE}"))
    fit, errors, room = fit_log(log)
    held = (room, "what vLLM reported at gpu_memory_utilization 0.9")
    print(table(("meta-llama/Llama-3.1-8B", "rtx4090", 1), fit, errors, held, f"fitted to {LOG_SOURCE}"))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: fit_engines.py GRID.csv.gz LOG_FOLDER")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
