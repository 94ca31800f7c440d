"""Dynamo's planner profiles (ai-dynamo 0.7.0, Apache-2.0): vLLM 0.10.1.1 on H100 and H200, FP8 weights.

A decode point: N equal requests of 500 output tokens come at once, twice; the mean ITL of the second time
counts. Its context is prompt + 250 and its KV use N * context / max_kv_tokens, which gives N and the prompt.
The prompts of the second time should come from the prefix cache. Whether they did shows in the throughput:
without prefill, N * 500 tokens take 500 ITLs. They did for Llama-3.1-8B (98%) and did not for
Llama-3.3-70B (66%), whose ITLs hence hold the prefill of its neighbours: the simulated runs do likewise.

A prefill point: the TTFT of one request at a time, through HTTP.

One factor per model and kind scales the simulated times: the tables are of another engine's kernels, and
hold no host time.
"""

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from fidelity.figure import Figure
from fidelity.replay import profile_itl

from kvferry.models.simulator.step_catalogue import find_steps

OUTPUT = 500
CHUNK_TOKENS = 8192  # vLLM's defaults on these GPUs
RUNNING = 1024
Rows = list[dict[str, str]]


def compare(file: Path) -> list[Figure]:
    """Median error of decode ITL and prefill TTFT per model, after its factor."""
    groups: dict[tuple[str, str], Rows] = defaultdict(list)
    with file.open() as lines:
        for row in csv.DictReader(lines):
            groups[row["model"], row["kind"]].append(row)
    found = []
    for (model, kind), rows in groups.items():
        measured_ms = np.array([float(row["latency_ms"]) for row in rows])
        if kind == "decode_itl":
            cached = _cached(rows)
            simulated_ms = np.array([_itl_ms(row, cached) for row in rows])
            note = "prompts found in the cache" if cached else "prompts computed beside decodes"
        else:
            simulated_ms = np.array([_prefill_ms(row) for row in rows])
            note = "one request at a time, through HTTP"
        factor = float(np.exp(np.median(np.log(measured_ms / simulated_ms))))
        error = np.abs(factor * simulated_ms / measured_ms - 1)
        found.append(
            Figure(
                f"Dynamo {model.replace('-Instruct', '')}",
                "ITL" if kind == "decode_itl" else "TTFT of prefill",
                error=float(np.median(error)),
                limit=0.15 if kind == "decode_itl" else None,
                points=len(rows),
                p90=float(np.quantile(error, 0.9)),
                note=f"after a factor of {factor:.2f}; {note}",
            )
        )
    return found


def _count(row: dict[str, str]) -> int:
    return round(float(row["kv_usage_fraction"]) * float(row["max_kv_tokens"]) / int(row["isl_or_context"]))


def _cached(rows: Rows) -> bool:
    """Whether a run lasted no longer than its tokens took.

    Throughput is told per GPU of the whole node, however many the worker has: a lone request shows how
    many those are.
    """
    alone = max(
        rows, key=lambda row: float(row["thpt_per_gpu"]) * float(row["latency_ms"]) if _count(row) == 1 else 0
    )
    gpus = round(1e3 / (float(alone["thpt_per_gpu"]) * float(alone["latency_ms"])))
    shares = [float(r["thpt_per_gpu"]) * gpus * float(r["latency_ms"]) / 1e3 / _count(r) for r in rows]
    return float(np.median(shares)) > 0.9


def _itl_ms(row: dict[str, str], cached: bool) -> float:
    steps = find_steps(row["model"], row["gpu"], int(row["tp"]))
    prompt = int(row["isl_or_context"]) - OUTPUT // 2
    return 1e3 * profile_itl(steps, prompt, OUTPUT, _count(row), CHUNK_TOKENS, RUNNING, cached)


def _prefill_ms(row: dict[str, str]) -> float:
    steps = find_steps(row["model"], row["gpu"], int(row["tp"]))
    left, before, total_s = int(row["isl_or_context"]), 0, 0.0
    while left:
        count = min(CHUNK_TOKENS, left)
        total_s += steps.tokens_s(count) + steps.attention_s * count * (before + count / 2)
        before, left = before + count, left - count
    return 1e3 * total_s
