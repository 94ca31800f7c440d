"""Whether running decodes take part in steps with prefill."""

import random
from dataclasses import replace

import pytest

from kvferry.models.simulator.engine import Engine
from kvferry.models.simulator.events import Events
from kvferry.models.simulator.job import Job
from kvferry.models.simulator.spec import EngineSpec
from kvferry.models.simulator.steps import StepTimes
from kvferry.policy.worker import Role

SPEC = EngineSpec("w", Role.COLOCATED, "m", "g", 1, chunk_tokens=1000, reserve_tokens=0, prefix_cache=False)
STEPS = StepTimes([0.01] * 65, [0.02 + 1e-4 * n for n in range(4001)], 0.0, 0.0, mixed_s=0.005)


class Silent:
    def granted(self, engine: Engine, job: Job) -> None: ...
    def chunk(self, engine: Engine, job: Job, tokens: int) -> None: ...
    def first_token(self, engine: Engine, job: Job) -> None: ...
    def finished(self, engine: Engine, job: Job) -> None: ...
    def failed(self, engine: Engine, job: Job) -> None: ...


def run(mixed: bool) -> tuple[Job, Job]:
    """One request decodes when a prompt of three chunks comes."""
    events = Events()
    engine = Engine(replace(SPEC, mixed_chunk=mixed), STEPS, events, Silent(), random.Random(0))
    first, second = Job(0, 100, 50), Job(1, 2997 if mixed else 3000, 10)
    events.at(0.0, engine.submit, first)
    events.at(0.1, engine.submit, second)
    events.run()
    return first, second


def test_a_mixed_step_gives_every_decode_a_token_and_takes_longer() -> None:
    first, second = run(mixed=True)
    # three chunks of 999 tokens, each beside one decode
    assert second.first_token_s - second.prefill_start_s == pytest.approx(3 * (0.02 + 0.1 + 0.005), rel=0.01)
    alone_s = 49 * 0.01
    assert first.end_s - first.first_token_s == pytest.approx(alone_s + 3 * (0.125 - 0.01), rel=0.01)


def test_without_mixed_steps_decodes_wait_for_the_whole_prompt() -> None:
    first, second = run(mixed=False)
    assert second.first_token_s - second.prefill_start_s == pytest.approx(3 * (0.02 + 0.1))
    assert first.end_s - first.first_token_s == pytest.approx(49 * 0.01 + 3 * 0.12)
