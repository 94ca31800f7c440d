"""Step times of a GPU for which there are no kernel tables, from a vLLM run's log and the GPU's data sheet.

Llama-3.1-8B (bfloat16) on one RTX 4090: 1,008 GB/s, 165.2 TFLOP/s dense bfloat16. Only the first 60 s of
the run are looked at, in which the first third of its requests is served.

    D             = bytes of all weights but the input embedding / (92% of the bandwidth), at any batch
    context_s     = median over decode-only seconds of (running / tokens per second - D) / context
    attention_s   = 4 * layers * width FLOP per token pair / (60% of the peak)
    L(2048)       = median time between first tokens while the token budget is exhausted, less the others
    L(n)          = (D^4 + (n L(2048) / 2048)^4)^(1/4): weights are read, or products computed
    mixed_s       = 0
"""

import csv
import gzip
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from kvferry.models.simulator.step_fit import StepFit

BANDWIDTH = 0.92 * 1008e9
FLOPS = 165.2e12
WEIGHT_BYTES = 2 * (8.03e9 - 128_256 * 4096)
PAIR_FLOP = 4 * 32 * 4096
CALIBRATED_S = 60.0
SOURCE = (
    "the first 60 s of a vLLM 0.19.0 run of 300 requests (casys-kaist/LLMServingSim, MIT), with weight reads "
    "at 92% of 1,008 GB/s and attention at 60% of 165.2 TFLOP/s; see benchmarks/fit_log.py"
)


def fit_log(folder: Path) -> tuple[StepFit, Mapping[str, tuple[float, float]], int]:
    """The fit, its relative errors by kind (median, p90), and the KV tokens that the engine reported."""
    with gzip.open(folder / "requests.jsonl.gz", "rt") as file:
        requests = [json.loads(line) for line in file]
    with (folder / "timeseries.csv").open() as file:
        seconds = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    room = int(json.loads((folder / "meta.json").read_text())["kv_cache"]["num_kv_tokens"])
    decode_s = WEIGHT_BYTES / BANDWIDTH
    seen = _decode_seconds(seconds)
    context = np.array([row["kv_cache_pct"] / 100 * room for row in seen])
    step_s = np.array([row["running"] / row["gen_throughput"] for row in seen])
    context_s = float(np.median((step_s - decode_s) / context))
    attention_s = PAIR_FLOP / (0.6 * FLOPS)
    full_s, beside = _full_steps(requests, context_s, attention_s)
    slope_s = float(np.median(full_s - beside)) / 2048
    counts = (1, 64, 96, 128, 160, 192, 256, 384, 512, 1024, 2048)
    tokens_s = tuple((n, (decode_s**4 + (n * slope_s) ** 4) ** 0.25) for n in counts)
    fit = StepFit(((1, decode_s), (256, decode_s)), tokens_s, attention_s, context_s, 0.0)
    errors = {
        "decode": _errors(decode_s + context_s * context, step_s),
        "mixed": _errors(2048 * slope_s + beside, full_s),
    }
    return fit, errors, room


def _decode_seconds(seconds: list[dict[str, float]]) -> list[dict[str, float]]:
    """Seconds without prompts in which few requests went and none came (back: a preempted one is computed
    again in steps that the log does not show)."""
    found = []
    for before, row in pairwise(seconds):
        still = 0 <= before["running"] - row["running"] <= 2 and row["gen_throughput"] > 0
        if row["t"] <= CALIBRATED_S and row["prompt_throughput"] == 0 and still:
            found.append(row)
    return found


def _full_steps(
    requests: list[dict[str, float]], context_s: float, attention_s: float
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of steps at the full token budget (until the KV is full, 4.2 s after the first request; the
    first second is warm-up), and what of it context and attention take."""
    start_s = requests[0]["queued_ts"]
    firsts = sorted({row["first_token_ts"] - start_s for row in requests})
    firsts = [at for at in firsts if 1.0 < at < 4.2]
    full_s, beside = [], []
    for begin, end in pairwise(firsts):
        if not 0.18 < end - begin < 0.25:  # less: the budget was not exhausted; more: two steps
            continue
        context = sum(row["input_toks"] for row in requests if row["first_token_ts"] - start_s <= begin)
        done = [row["input_toks"] for row in requests if row["first_token_ts"] - start_s == end]
        full_s.append(end - begin)
        beside.append(context_s * context + attention_s * 2048 * float(np.mean(done)) / 2)
    return np.array(full_s), np.array(beside)


def _errors(predicted: np.ndarray, measured: np.ndarray) -> tuple[float, float]:
    error = np.abs(predicted / measured - 1)
    return float(np.median(error)), float(np.quantile(error, 0.9))
