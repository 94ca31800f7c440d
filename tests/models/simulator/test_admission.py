"""Who is let in, and who is told at once that it never will be."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from engine_worlds import SPEC, check_empty, engine_of, heard, run_checked

from kvferry.models.simulator.engine import Engine
from kvferry.models.simulator.job import Job
from kvferry.models.simulator.spec import EngineSpec
from kvferry.policy.worker import Role

SMALL = replace(SPEC, max_total_tokens=1200, reserve_tokens=0)
ROLES = {
    Role.COLOCATED: SMALL,
    Role.PREFILL: replace(SMALL, role=Role.PREFILL),
    Role.DECODE: replace(SMALL, role=Role.DECODE),
}


def ask(engine: Engine, job: Job) -> None:
    (engine.expect if engine.spec.role is Role.DECODE else engine.submit)(job)


def run(spec: EngineSpec, jobs: Sequence[Job], gap_s: float = 0.001) -> Engine:
    engine = engine_of(spec)
    for place, job in enumerate(jobs):
        engine.events.at(gap_s * place, ask, engine, job)
    run_checked(engine)
    check_empty(engine)
    return engine


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("before", [0, 1])
def test_a_prompt_larger_than_the_room_fails_as_soon_as_it_is_its_turn(role: Role, before: int) -> None:
    """Whatever else holds KV by then."""
    others = [Job(0, 600, 400)] * before
    huge, after = Job(1, 1201, 5), Job(2, 300, 5)
    engine = run(ROLES[role], [*others, huge, after])
    told = heard(engine)
    assert told.of(huge) == ["failed"]
    assert [told.of(job)[-1] for job in (*others, after)] == ["finished"] * (before + 1)
    for other in others:
        assert role is Role.PREFILL or huge.end_s < other.end_s


@pytest.mark.parametrize("prompt", [1199, 1200])
@pytest.mark.parametrize("role", [Role.COLOCATED, Role.DECODE])
def test_one_that_outgrows_the_room_alone_fails_and_the_next_gets_its_turn(role: Role, prompt: int) -> None:
    grows, after = Job(0, prompt, 50), Job(1, 1000, 50)
    engine = run(ROLES[role], [grows, after])
    assert heard(engine).of(grows)[-1] == "failed"
    assert heard(engine).of(after)[-1] == "finished"


@pytest.mark.parametrize("role", [Role.COLOCATED, Role.DECODE])
def test_what_just_fits_alone_is_served(role: Role) -> None:
    just, whole = Job(0, 1150, 51), Job(1, 1200, 1)
    engine = run(ROLES[role], [just, whole])
    assert [heard(engine).of(job)[-1] for job in (just, whole)] == ["finished", "finished"]
    assert not engine.retractions


def test_first_come_first_served_even_when_a_later_one_would_fit() -> None:
    jobs = [Job(0, 700, 20), Job(1, 700, 20), Job(2, 100, 20)]
    run(SMALL, jobs)
    assert jobs[1].prefill_start_s == pytest.approx(jobs[0].end_s)
    assert jobs[2].prefill_start_s >= jobs[1].prefill_start_s


def test_room_is_reserved_for_all_that_run() -> None:
    """Where decodes grow by 512 tokens each at most, nothing is ever retracted."""
    jobs = [Job(row, 500, 512) for row in range(6)]
    engine = run(replace(SMALL, max_total_tokens=4000, reserve_tokens=512), jobs)
    assert not engine.retractions
    together = max(sum(a.prefill_start_s <= b.prefill_start_s < a.end_s for a in jobs) for b in jobs)
    assert together == 3  # 3 x 500 + 3 x 512 fit with a fourth's 500 + 512 only when one has gone


def test_no_more_run_than_the_worker_takes() -> None:
    jobs = [Job(row, 50, 30) for row in range(9)]
    engine = run(replace(SPEC, max_running_requests=4), jobs)
    assert all(heard(engine).ends(job) == 1 for job in jobs)
    running = [sum(a.first_token_s <= b.first_token_s < a.end_s for a in jobs) for b in jobs]
    assert max(running) == 4


@pytest.mark.parametrize("role", [Role.COLOCATED, Role.DECODE])
def test_the_last_to_join_is_retracted_and_still_ends(role: Role) -> None:
    first, second = Job(0, 500, 400), Job(1, 500, 400)
    engine = run(ROLES[role], [first, second])
    assert engine.retractions == second.retractions >= 1
    assert not first.retractions
    assert [heard(engine).of(job).count("first_token") for job in (first, second)] == [1, 1]
    assert second.end_s > first.end_s


def test_a_retracted_decode_waits_for_a_prompt_that_is_half_computed() -> None:
    """Otherwise each would wait for the other's KV."""
    crossed = 0
    for prompt in range(1070, 1090):
        first, long = Job(0, 100, 400), Job(1, prompt, 5)
        engine = run(SMALL, [first, long], gap_s=0.2)
        crossed += long.prefill_start_s < first.end_s and first.retractions > 0
        assert [heard(engine).of(job)[-1] for job in (first, long)] == ["finished", "finished"]
    assert crossed
