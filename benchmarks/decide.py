"""How long one decision takes: by default 8 prefill x 8 decode x 2 transports + 16 colocated workers.

    python benchmarks/decide.py [--policy kvferry] [--fleet 8,8,16] [--residual network] [--rounds 20]

With `--fleet 4,4,0`, say, there is one transport and decode workers prefill as well. `--residual`: with a
learned model, `network` or `forest` with random weights, or one that `kvferry train` wrote to a folder.

Requests differ in length, output, prefix and objective, the workers in load. Prints microseconds per
decision; p5 is what a quiet machine would show, p50 what this one showed.
"""

import argparse
import cProfile
import json
import platform
import pstats
import time
from dataclasses import replace

import numpy as np
from residuals import residual

from kvferry.policy import base
from kvferry.policy.cluster import Cluster
from kvferry.policy.kvshape import KVShape
from kvferry.policy.link import Link
from kvferry.policy.request import Request
from kvferry.policy.worker import Load, Role, Speed, Worker

# Qwen3-32B at TP2 on H200, over 400 Gb/s InfiniBand: see configs/.
SHAPE = KVShape(layers=64, kv_heads=8, head_dim=128)
SPEED = Speed(0.0084, 49e-6, 1.9e-9, 0.0101, 32e-6, 29e-9)
FLEET = (8, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policy", default="kvferry")
    parser.add_argument("--fleet", type=counts, default=FLEET, help="prefill,decode,colocated workers")
    parser.add_argument("--residual", default="none", help="none, network, forest or a folder")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--profile", action="store_true", help="where the time goes, by function")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    world = replace(cluster(rng, given.fleet), corrector=residual(given.residual))
    requests = [request(rng, i, world) for i in range(given.requests)]
    policy = base.make(given.policy)
    modes = [policy.decide(each, world).mode.value for each in requests]
    if given.profile:
        profile = cProfile.Profile()
        profile.enable()
        for each in requests * 4:
            policy.decide(each, world)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(20)
        return
    spent = np.empty((given.rounds, given.requests))
    for round_ in range(given.rounds):
        for i, each in enumerate(requests):
            start = time.perf_counter_ns()
            policy.decide(each, world)
            spent[round_, i] = time.perf_counter_ns() - start
    micros = {f"p{q}_us": round(float(np.percentile(spent, q)) / 1e3, 1) for q in (5, 50, 90, 99)}
    print_result(
        given.json,
        {
            "policy": policy.name,
            "residual": given.residual,
            "candidates": len(world.candidates.plans),
            "decisions": spent.size,
            "split_share": round(modes.count("split") / len(modes), 2),
            **micros,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "cpu": cpu(),
        },
    )


def counts(text: str) -> tuple[int, ...]:
    """Of prefill, decode and colocated workers."""
    found = tuple(int(part) for part in text.split(","))
    if len(found) != len(FLEET):
        raise argparse.ArgumentTypeError(f"{text}: three numbers are needed")
    return found


def cluster(rng: np.random.Generator, fleet: tuple[int, ...] = FLEET) -> Cluster:
    """A fleet under mixed load, with moves in flight and work of our own."""
    mixed = fleet[2] > 0
    workers = [
        Worker(
            id=f"http://{role.value}-{i:02}:30000",
            url=f"http://{role.value}-{i:02}:30000",
            role=role,
            model="Qwen/Qwen3-32B",
            shape=SHAPE,
            transports=("mooncake", "nixl") if mixed else ("mooncake",),
            local_prefill=not mixed,
            bootstrap_port=8998,
            bootstrap_ports={"mooncake": 8998, "nixl": 8999},
            host=f"{role.value}-{i:02}",
            speed=replace(SPEED, prefill_s_per_token=49e-6 * float(rng.uniform(0.9, 1.1))),
            load=load(rng, role),
        )
        for role, count in zip((Role.PREFILL, Role.DECODE, Role.COLOCATED), fleet, strict=True)
        for i in range(count)
    ]

    def link(src: Worker, dst: Worker, transport: str) -> Link:
        merges = transport == "mooncake"
        return Link(src.host, dst.host, transport, "ib", 2e-5, 82e9, 72e9, 3.5e-7, merges_runs=merges)

    world = Cluster.of(workers, link)
    state = world.state
    state.own_prefill_tokens[:] = rng.integers(0, 4000, len(workers))
    state.arrivals_per_s[:] = rng.uniform(0, 3, len(workers))
    state.moves[:] = rng.integers(0, 3, len(state.moves))
    return world


def load(rng: np.random.Generator, role: Role) -> Load:
    decodes = int(rng.integers(0, {Role.PREFILL: 1, Role.DECODE: 60, Role.COLOCATED: 8}[role]))
    return Load(
        foreign_prefill_tokens=0.0 if role is Role.DECODE else float(rng.integers(0, 12_000)),
        foreign_decodes=decodes,
        foreign_context_tokens=decodes * 3000.0,
        prefill_share=0.0 if role is Role.DECODE else float(rng.uniform(0, 0.5)),
    )


def request(rng: np.random.Generator, i: int, world: Cluster) -> Request:
    """Log-normal lengths; every other prompt has its beginning on three workers."""
    prompt = int(np.clip(rng.lognormal(7.5, 1.4), 8, 120_000))
    holders = rng.choice([worker.id for worker in world.candidates.workers], 3) if i % 2 else ()
    output = float(np.clip(rng.lognormal(5.0, 1.0), 1, 4000))
    return Request(
        id=f"r{i}",
        model="Qwen/Qwen3-32B",
        prompt_tokens=prompt,
        expected_output_tokens=output,
        expected_output_tokens_p90=2 * output,
        held_tokens={str(name): int(prompt * rng.uniform(0, 1)) for name in holders},
        seed=i,
    )


def cpu() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def print_result(as_json: bool, result: dict[str, object]) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:12} {value}")


if __name__ == "__main__":
    main()
