"""How far an engine is between its events."""

import random

from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.simulator.engine import Engine
from kvferry.models.simulator.events import Events
from kvferry.models.simulator.job import Job
from kvferry.models.simulator.progress import boundary_s, tokens_out
from kvferry.models.simulator.spec import EngineSpec
from kvferry.models.simulator.steps import StepTimes
from kvferry.policy.worker import Role

STEPS = StepTimes([0.01, 0.012], [0.01, 0.0101], 0.0, 1e-6, 0.0)
SPEC = EngineSpec("c0", Role.COLOCATED, "m", "g", 1, chunk_tokens=64, max_total_tokens=4000, reserve_tokens=0)


class Told:
    """Hooks that note how many tokens were out when an engine told something."""

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}

    def granted(self, engine: Engine, job: Job) -> None: ...

    def chunk(self, engine: Engine, job: Job, tokens: int) -> None: ...

    def first_token(self, engine: Engine, job: Job) -> None:
        assert tokens_out(engine, job) == 1

    def finished(self, engine: Engine, job: Job) -> None:
        self.ended[job.row] = tokens_out(engine, job)

    def failed(self, engine: Engine, job: Job) -> None: ...


JOBS = st.lists(
    st.tuples(st.floats(0.0, 1.0), st.integers(1, 300), st.integers(1, 60)), min_size=1, max_size=8
)


@given(JOBS, st.lists(st.floats(0.0, 3.0), max_size=30))
def test_tokens_only_ever_come_and_all_come(asked: list[tuple[float, int, int]], looks: list[float]) -> None:
    events, told = Events(), Told()
    engine = Engine(SPEC, STEPS, events, told, random.Random(0))
    jobs = [Job(row, prompt, output) for row, (_, prompt, output) in enumerate(asked)]
    for job, (at_s, _, _) in zip(jobs, asked, strict=True):
        events.at(at_s, engine.submit, job)
    before = [0] * len(jobs)
    for look_s in sorted(looks):
        events.run(look_s)
        now = [tokens_out(engine, job) for job in jobs]
        assert all(was <= out <= job.output_tokens for was, out, job in zip(before, now, jobs, strict=True))
        before = now
    events.run()
    assert told.ended == {job.row: job.output_tokens for job in jobs}


def test_a_boundary_is_when_so_many_tokens_are_out() -> None:
    events, told = Events(), Told()
    engine = Engine(SPEC, STEPS, events, told, random.Random(0))
    job = Job(0, 10, 50)
    assert boundary_s(engine, 1) is None
    engine.submit(job)
    events.run(boundary_s(engine, 1) or 0.0)
    assert tokens_out(engine, job) == 1, "the prompt's own step"
    for steps in (1, 3, 7):
        before = tokens_out(engine, job)
        due_s = boundary_s(engine, steps)
        assert due_s is not None
        events.run(due_s - 1e-6)
        assert tokens_out(engine, job) == before + steps - 1
        events.run(due_s)
        assert tokens_out(engine, job) == before + steps
    end_s = boundary_s(engine, 1000)
    events.run()
    assert end_s == events.now_s == job.end_s, "no further than what is planned"
