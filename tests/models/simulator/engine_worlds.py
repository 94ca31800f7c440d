"""Engines in a world of their own, and a slow engine that does the same one step after the other."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvferry.models.simulator.engine import Engine
from kvferry.models.simulator.events import Events
from kvferry.models.simulator.job import Job
from kvferry.models.simulator.spec import EngineSpec
from kvferry.models.simulator.steps import StepTimes
from kvferry.policy.worker import Role

STEPS = StepTimes(
    [0.011 + 1e-4 * b for b in range(65)], [0.02 + 1e-4 * n for n in range(4001)], 3e-9, 7e-8, mixed_s=0.005
)
SPEC = EngineSpec("w", Role.COLOCATED, "m", "g", 1, chunk_tokens=256, max_total_tokens=100_000)


@dataclass
class Heard:
    """Writes down what an engine tells. KV comes `move_s` after room was granted, and leaves a prefill
    worker `move_s` after it was computed."""

    events: Events
    move_s: float = 0.05
    told: list[tuple[str, Job]] = field(default_factory=list)

    def granted(self, engine: Engine, job: Job) -> None:
        self.told.append(("granted", job))
        self.events.at(self.events.now_s + self.move_s, engine.arrive, job)

    def chunk(self, engine: Engine, job: Job, tokens: int) -> None:
        self.told.append(("chunk", job))

    def first_token(self, engine: Engine, job: Job) -> None:
        self.told.append(("first_token", job))

    def finished(self, engine: Engine, job: Job) -> None:
        self.told.append(("finished", job))
        if engine.spec.role is Role.PREFILL:
            self.events.at(self.events.now_s + self.move_s, engine.release, job)

    def failed(self, engine: Engine, job: Job) -> None:
        self.told.append(("failed", job))

    def of(self, job: Job) -> list[str]:
        return [what for what, whom in self.told if whom is job]

    def ends(self, job: Job) -> int:
        return sum(what in ("finished", "failed") for what in self.of(job))


def engine_of(spec: EngineSpec, *, seed: int = 0, sigma: float = 0.0, block_tokens: int = 64) -> Engine:
    events = Events()
    return Engine(
        spec, STEPS, events, Heard(events), random.Random(seed), step_sigma=sigma, block_tokens=block_tokens
    )


def heard(engine: Engine) -> Heard:
    assert isinstance(engine._hooks, Heard)
    return engine._hooks


def check_kv(engine: Engine) -> None:
    """What must be true at any event."""
    kv, cache = engine.kv, engine.kv.cache
    assert kv.private_tokens >= 0
    assert cache.idle_tokens >= 0
    assert kv.private_tokens + cache.tokens <= kv.capacity_tokens
    assert engine.batch.size <= engine.spec.max_running_requests


def check_sums(engine: Engine) -> None:
    """What is kept up to date is what one would find by looking."""
    cache = engine.kv.cache
    idle = {block for block, users in cache._locks.items() if not users}
    assert idle == set(cache._idle)
    assert all(users >= 0 for users in cache._locks.values())
    assert engine.batch.size == len(engine.batch.jobs())


def check_empty(engine: Engine) -> None:
    """What must be true when all is over."""
    desk, kv = engine.admission, engine.kv
    assert engine.batch.size == engine.batch.context_tokens == kv.private_tokens == kv.used_tokens == 0
    assert desk.jobs() == []
    assert not engine.held
    assert not any(kv.cache._locks.values())


def run_checked(engine: Engine, until_s: float = 1e6) -> None:
    """To the end, with a look at the KV room after every event."""
    events = engine.events
    while (due_s := events.next_s) is not None and due_s <= until_s:
        events.run(due_s)
        check_kv(engine)
        check_sums(engine)


@dataclass
class Slow:
    """One request on the slow engine."""

    arrival_s: float
    prompt: int
    output: int
    computed: int = 0
    generated: int = 0
    first_s: float = -1.0
    end_s: float = -1.0


@dataclass
class SlowEngine:
    """A colocated engine without noise, prefix cache, and want of KV room: every step is walked, every
    request of it is visited, every sum is formed anew."""

    spec: EngineSpec
    now_s: float = 0.0
    steps: int = 0
    prefill_tokens: int = 0
    prefill_busy_s: float = 0.0
    pure: list[tuple[int, float]] = field(default_factory=list)  # batch and seconds of pure decode steps

    def run(self, requests: Sequence[Slow]) -> None:
        coming = sorted(requests, key=lambda one: one.arrival_s)
        waiting: list[Slow] = []
        running: list[Slow] = []
        while coming or waiting or running:
            if not waiting and not running:
                self.now_s = max(self.now_s, coming[0].arrival_s)
            while coming and coming[0].arrival_s <= self.now_s:
                waiting.append(coming.pop(0))
            chunks = self._chunks(waiting, len(running))
            decodes = running if self.spec.mixed_chunk or not chunks else []
            self.now_s += self._step_s(chunks, decodes)
            self.steps += 1
            for one in decodes:
                one.generated += 1
            for one, count in chunks:
                one.computed += count
                if one.computed == one.prompt:
                    waiting.remove(one)
                    running.append(one)
                    one.generated, one.first_s = 1, self.now_s
            for one in [one for one in running if one.generated == one.output]:
                one.end_s = self.now_s
                running.remove(one)

    def _chunks(self, waiting: list[Slow], running: int) -> list[tuple[Slow, int]]:
        budget = self.spec.chunk_tokens
        if self.spec.mixed_chunk:
            budget = max(16, budget - running)
        chunks: list[tuple[Slow, int]] = []
        for one in waiting:
            count = min(budget, one.prompt - one.computed)
            if count and running + len(chunks) < self.spec.max_running_requests:
                chunks.append((one, count))
                budget -= count
            else:
                break
        return chunks

    def _step_s(self, chunks: list[tuple[Slow, int]], decodes: list[Slow]) -> float:
        context = sum(one.prompt + one.generated for one in decodes)
        if not chunks:
            step_s = STEPS.decode_s(len(decodes)) + STEPS.context_s * context
            self.pure.append((len(decodes), step_s))
            return step_s
        fresh = sum(count for _, count in chunks)
        step_s = STEPS.tokens_s(fresh + len(decodes)) + STEPS.context_s * context
        step_s += STEPS.attention_s * sum(count * (one.computed + count / 2) for one, count in chunks)
        step_s += STEPS.mixed_s if decodes else 0.0
        self.prefill_tokens += fresh
        self.prefill_busy_s += step_s
        return step_s
