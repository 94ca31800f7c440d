"""Measured SGLang serving points of aiconfigurator-core 0.12.0 (Apache-2.0): systems/silicon_sample.csv.

A colocated point keeps `batch_size` requests of equal shape in flight; played again as a closed loop of ten
rounds, with SGLang's default chunk of 8,192 tokens. Its engine steps come from the same package's kernel
tables, its KV room from benchmarks/fit_engines.py. Left out: GPUs and weights that these lack (fp4, GB200,
B300), attention under data parallelism, and what does not fit in memory.
"""

import csv
import random
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from fidelity.figure import Figure
from fidelity.replay import closed_loop, colocated
from fit_engines import GPU_GB, kv_room

from kvferry.models.simulator.job import Job
from kvferry.models.simulator.silicon import silicon_steps
from kvferry.models.simulator.step_catalogue import UnknownStepsError

CHUNK_TOKENS = 8192
ROUNDS = 10
Row = dict[str, str]
# As the sample names them, with their weights: as fit_engines knows them.
MODELS = {
    ("Qwen/Qwen3-32B", ""): "Qwen/Qwen3-32B",
    ("Qwen/Qwen3-32B", "fp8"): "Qwen/Qwen3-32B-FP8",
    ("Qwen/Qwen3-235B-A22B-FP8", "fp8"): "Qwen/Qwen3-235B-A22B-FP8",
    ("meta-llama/Llama-3.1-8B-Instruct", "fp8"): "meta-llama/Llama-3.1-8B-FP8",
    ("deepseek-ai/DeepSeek-R1", "fp8"): "deepseek-ai/DeepSeek-V3",
}


def sample() -> Path | None:
    """The file, where the extra is installed."""
    spec = find_spec("aiconfigurator_core")
    return Path(spec.origin).parent / "systems" / "silicon_sample.csv" if spec and spec.origin else None


def compare(file: Path) -> list[Figure]:
    """Median errors of TTFT and TPOT per model and GPU."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for model, row in points(file, "agg"):
        try:
            simulated = _colocated(model, row)
        except UnknownStepsError:
            continue
        errors = (simulated[0] / seconds(row, "ttft") - 1, simulated[1] / seconds(row, "tpot") - 1)
        groups[f"{model.rpartition('/')[2]} {row['system'].removesuffix('_sxm').upper()}"].append(errors)
    return [
        _summary(f"SGLang {name}", metric, np.array([error[i] for error in errors]))
        for name, errors in groups.items()
        for i, metric in enumerate(("TTFT mean", "TPOT mean"))
    ]


def points(file: Path, mode: str) -> Iterator[tuple[str, Row]]:
    """The sample's SGLang points of known models, each once."""
    seen = set()
    with file.open() as lines:
        for row in csv.DictReader(lines):
            model = MODELS.get((row["model_path"], row["precision"]))
            gpu = row["system"].removesuffix("_sxm")
            place = (row["backend"], row["mode"])
            if place != ("sglang", mode) or model is None or gpu not in GPU_GB:
                continue
            if row["attention_dp_size"] not in ("", "1", "1.0"):
                continue
            key = tuple(value for name, value in row.items() if name not in ("id", "silicon_data_source"))
            if key not in seen:
                seen.add(key)
                yield model, row


def _colocated(model: str, row: Row) -> tuple[float, float]:
    gpu, tp, count = (
        row["system"].removesuffix("_sxm"),
        int(float(row["tp_size"])),
        int(float(row["batch_size"])),
    )
    steps = silicon_steps(model, gpu, tp)
    room_tokens, _ = kv_room(model, gpu, tp)
    prompt, output = int(row["isl"]), int(row["osl"])
    if room_tokens < prompt + output:
        raise UnknownStepsError("no room")
    jobs = [Job(i, *_shape(row, prompt, output, i)) for i in range(count * ROUNDS)]
    return closed_loop(colocated(CHUNK_TOKENS, room_tokens, 4096, mixed=False), steps, jobs, count)


def _shape(row: Row, prompt: int, output: int, index: int) -> tuple[int, int]:
    if "source_file=/" in row["silicon_data_source"]:  # a sweep with equal requests
        return prompt, output
    rng = random.Random(index)  # InferenceMAX draws lengths between 0.8 and 1 of the nominal ones
    return round(prompt * rng.uniform(0.8, 1.0)), round(output * rng.uniform(0.8, 1.0))


def seconds(row: Row, metric: str) -> float:
    return float(row[f"silicon_{metric}_ms"]) / 1e3


def _summary(part: str, metric: str, errors: np.ndarray) -> Figure:
    size = np.abs(errors)
    return Figure(
        part,
        metric,
        error=float(np.median(size)),
        points=len(errors),
        p90=float(np.quantile(size, 0.9)),
        bias=float(np.median(errors)),
    )
