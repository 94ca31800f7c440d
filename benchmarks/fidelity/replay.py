"""Measured runs played again on one simulated engine."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from kvferry.models.simulator.engine import Engine
from kvferry.models.simulator.events import Events
from kvferry.models.simulator.job import Job
from kvferry.models.simulator.spec import EngineSpec
from kvferry.models.simulator.steps import StepTimes
from kvferry.models.workload.base import Floats
from kvferry.policy.worker import Role


class Listener:
    """Hooks that count failures and tell who wants to know of an end."""

    def __init__(self, ended: Callable[[Job], None] | None = None) -> None:
        self.failures = 0
        self._ended = ended

    def granted(self, engine: Engine, job: Job) -> None: ...

    def chunk(self, engine: Engine, job: Job, tokens: int) -> None: ...

    def first_token(self, engine: Engine, job: Job) -> None: ...

    def finished(self, engine: Engine, job: Job) -> None:
        if self._ended is not None:
            self._ended(job)

    def failed(self, engine: Engine, job: Job) -> None:
        self.failures += 1


def colocated(
    chunk_tokens: int, room_tokens: int, running: int, *, mixed: bool = True, prefix_cache: bool = False
) -> EngineSpec:
    """An engine that lets in whatever fits, without a reserve."""
    return EngineSpec(
        "w0",
        Role.COLOCATED,
        model="",
        gpu="",
        tp=1,
        chunk_tokens=chunk_tokens,
        mixed_chunk=mixed,
        max_total_tokens=room_tokens,
        max_running_requests=running,
        reserve_tokens=0,
        prefix_cache=prefix_cache,
    )


def open_loop(spec: EngineSpec, steps: StepTimes, jobs: Sequence[Job], arrival_s: Floats) -> Engine:
    """Jobs in at their times, without noise; their own fields then tell what came of them."""
    events, listener = Events(), Listener()
    engine = Engine(spec, steps, events, listener, random.Random(0))
    for job, at_s in zip(jobs, arrival_s.tolist(), strict=True):
        events.at(at_s, engine.submit, job)
    events.run()
    if listener.failures:
        raise ValueError(f"{listener.failures} of {len(jobs)} requests never fit")
    return engine


def closed_loop(
    spec: EngineSpec, steps: StepTimes, jobs: Sequence[Job], concurrency: int
) -> tuple[float, float]:
    """Mean TTFT and mean time per output token [s] with `concurrency` requests in flight at any time."""
    events, rest = Events(), iter(jobs)

    def next_one(_: Job | None = None) -> None:
        job = next(rest, None)
        if job is not None:
            engine.submit(job)

    engine = Engine(spec, steps, events, Listener(next_one), random.Random(0))
    for _ in range(concurrency):
        events.at(0.0, next_one)
    events.run()
    ttft_s = [job.first_token_s - job.queued_s for job in jobs]
    tpot_s = [(job.end_s - job.first_token_s) / max(1, job.output_tokens - 1) for job in jobs]
    return float(np.mean(ttft_s)), float(np.mean(tpot_s))


def profile_itl(
    steps: StepTimes, prompt: int, output: int, count: int, chunk_tokens: int, running: int, cached: bool
) -> float:
    """Mean time between tokens [s] of `count` equal requests that come at once, all prompts computed, or
    all found in the prefix cache by a run before."""
    events = Events()
    spec = colocated(chunk_tokens, count * (prompt + 2 * output) + prompt, running, prefix_cache=True)
    engine = Engine(spec, steps, events, Listener(), random.Random(0), block_tokens=prompt)
    for _ in range(2 if cached else 1):
        jobs = [Job(row, prompt, output, blocks=(row,)) for row in range(count)]
        for job in jobs:
            events.at(events.now_s, engine.submit, job)
        events.run()
    return float(np.mean([(job.end_s - job.first_token_s) / (output - 1) for job in jobs]))
