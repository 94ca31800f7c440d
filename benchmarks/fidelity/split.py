"""Measured disaggregated SGLang points of the same sample, played again by the whole simulator.

Only those that say how many workers of which kind there were, without attention under data parallelism:
four of Qwen3-32B (FP8) on H100. Requests arrive evenly, at the rate at which they were served: those in
flight (`decode_batch_size` per decode worker) over the time that one took (Little's law).
"""

from pathlib import Path

import numpy as np
from fidelity.figure import Figure
from fidelity.serving import Row, points, seconds
from fit_engines import kv_room

from kvferry.models.simulator.run import Run
from kvferry.models.simulator.silicon import silicon_steps
from kvferry.models.simulator.simulation import simulate
from kvferry.models.simulator.spec import ClusterSpec, EngineSpec, TruthSpec
from kvferry.models.workload.base import Workload
from kvferry.policy.base import make
from kvferry.policy.worker import Role

REQUESTS = 1000
EXACT = TruthSpec(0.0, 0.0, 0.0, 10.0, 0.0)


def compare(file: Path) -> list[Figure]:
    """Mean TTFT and TPOT of every point."""
    found = []
    for model, row in points(file, "disagg"):
        if not row["prefill_num_workers"] or float(row["decode_attention_dp_size"] or 1) > 1:
            continue
        run = _run(model, row)
        pools = " + ".join(
            f"{_int(row, f'{role}_num_workers')}{role[0].upper()} TP{_int(row, f'{role}_tp_size')}"
            for role in ("prefill", "decode")
        )
        for metric, values in (("ttft", run.ttft_s), ("tpot", run.itl_s)):
            measured, simulated = seconds(row, metric), float(np.nanmean(values))
            found.append(
                Figure(
                    f"SGLang split {pools}",
                    f"{metric.upper()} mean",
                    error=simulated / measured - 1,
                    measured=measured,
                    simulated=simulated,
                )
            )
    return found


def _int(row: Row, key: str) -> int:
    return int(float(row[key]))


def _run(model: str, row: Row) -> Run:
    prompt, output = _int(row, "isl"), _int(row, "osl")
    in_flight = _int(row, "decode_batch_size") * _int(row, "decode_num_workers")
    rate = in_flight / (seconds(row, "ttft") + output * seconds(row, "tpot"))
    shape = (np.full(REQUESTS, prompt), np.full(REQUESTS, output))
    workload = Workload.of("measured rate", np.arange(REQUESTS) / rate, *shape)
    cluster = _cluster(model, row)
    return simulate(
        cluster, workload, make("always_split"), steps_of=lambda spec: silicon_steps(model, spec.gpu, spec.tp)
    )


def _cluster(model: str, row: Row) -> ClusterSpec:
    gpu = row["system"].removesuffix("_sxm")
    engines = []
    for role in (Role.PREFILL, Role.DECODE):
        tp = _int(row, f"{role.value}_tp_size")
        room_tokens, _ = kv_room(model, gpu, tp)
        for index in range(_int(row, f"{role.value}_num_workers")):
            spec = EngineSpec(
                f"{role.value}{index}",
                role,
                model,
                gpu,
                tp,
                chunk_tokens=8192,
                max_total_tokens=room_tokens,
                max_running_requests=4096,
                prefix_cache=False,
                host=f"{role.value}{index}",
            )
            engines.append(spec)
    return ClusterSpec("measured", tuple(engines), truth=EXACT)
