"""A vLLM run on one RTX 4090 (casys-kaist/LLMServingSim, MIT): 300 ShareGPT requests at 10/s, saturated.

The engine's coefficients were fitted to the first 60 s (benchmarks/fit_log.py), in which the first 100
requests are served: what counts are the other 200, and their figures are what is asked for.
"""

import gzip
import json
from pathlib import Path

import numpy as np
from fidelity.figure import Figure
from fidelity.replay import colocated, open_loop

from kvferry.models.simulator.job import Job
from kvferry.models.simulator.step_catalogue import find_engine
from kvferry.models.workload.base import Floats

LIMITS = {("TTFT", "p50"): 0.15, ("ITL", "mean"): 0.15, ("E2E", "p90"): 0.20}
FITTED = 100
MOMENTS = ("prefill_start_s", "first_token_s", "end_s")


def compare(folder: Path) -> list[Figure]:
    """Queue time, TTFT, mean ITL and E2E: mean, median and 90th percentile of requests 100..299, and what is
    asked for of all 300."""
    with gzip.open(folder / "requests.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    meta = json.loads((folder / "meta.json").read_text())
    config = meta["engine_kwargs"]
    column = {key: np.array([row[key] for row in rows]) for key in rows[0] if key != "request_id"}
    # Two clocks: the engine takes a request in at once when it is idle, so the least distance is 0.
    shift_s = (column["queued_ts"] - column["arrival_time"]).min() + column["arrival_time"][0]
    arrival_s = column["arrival_time"] - column["arrival_time"][0]
    measured = _times(
        arrival_s,
        *(column[f"{key}_ts"] - shift_s for key in ("scheduled", "first_token", "last_token")),
        column["output_toks"],
    )
    entry = find_engine(meta["model"], "rtx4090", 1)
    spec = colocated(config["max_num_batched_tokens"], entry.kv_room_tokens, config["max_num_seqs"])
    jobs = [Job(i, int(row["input_toks"]), int(row["output_toks"])) for i, row in enumerate(rows)]
    open_loop(spec, entry.fit.bake(), jobs, arrival_s)
    moments = (np.array([getattr(job, key) for job in jobs]) for key in MOMENTS)
    simulated = _times(arrival_s, *moments, column["output_toks"])
    found = [
        _figure("requests 100-299", metric, name, measured[metric][FITTED:], simulated[metric][FITTED:])
        for metric in measured
        for name in ("mean", "p50", "p90")
    ]
    return found + [
        _figure("all requests", metric, name, measured[metric], simulated[metric]) for metric, name in LIMITS
    ]


def _times(arrival: Floats, start: Floats, first: Floats, last: Floats, output: Floats) -> dict[str, Floats]:
    return {
        "queue": start - arrival,
        "TTFT": first - arrival,
        "ITL": (last - first) / np.maximum(1, output - 1),
        "E2E": last - arrival,
    }


def _figure(which: str, metric: str, name: str, measured: Floats, simulated: Floats) -> Figure:
    take = {"mean": np.mean, "p50": np.median, "p90": lambda values: np.quantile(values, 0.9)}[name]
    was, found = float(take(measured)), float(take(simulated))
    return Figure(
        f"RTX 4090, {which}",
        f"{metric} {name}",
        error=found / was - 1,
        limit=LIMITS.get((metric, name)),
        measured=was,
        simulated=found,
        points=len(measured),
    )
