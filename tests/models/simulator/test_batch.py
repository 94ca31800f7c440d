"""The batch that keeps sums, against one that looks at every request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.simulator.batch import Batch, steps_s, steps_within
from kvferry.models.simulator.job import Job

ACTION = st.one_of(
    st.tuples(st.just("join"), st.integers(1, 50), st.integers(2, 9)),
    st.tuples(st.just("leave"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 9), st.just(0)),
)


@given(st.lists(ACTION, max_size=40))
def test_sums_are_those_of_the_running_requests(actions: list[tuple[str, int, int]]) -> None:
    batch = Batch()
    running: list[tuple[Job, int]] = []  # with its tokens so far
    for what, first, second in actions:
        if what == "join":
            job = Job(0, first, second, generated=1)
            batch.join(job)
            running.append((job, 1))
        elif not running:
            continue
        elif what == "leave":
            job, tokens = running.pop(first % len(running))
            batch.leave(job)
            assert job.generated == tokens
        else:
            count = min(first, batch.until_end)
            assert batch.until_end == min(job.output_tokens - tokens for job, tokens in running)
            batch.step(count)
            running = [(job, tokens + count) for job, tokens in running]
            over = [job for job, tokens in running if tokens == job.output_tokens]
            assert batch.ended() == over
            assert all(job.generated == job.output_tokens for job in over)
            running = [(job, tokens) for job, tokens in running if job not in over]
        assert batch.size == len(running)
        assert batch.context_tokens == sum(job.prompt_tokens + tokens for job, tokens in running)
        assert batch.jobs() == [job for job, _ in running]
        if running:
            assert batch.latest() is running[-1][0]


def test_a_request_that_comes_back_ends_once() -> None:
    batch, job = Batch(), Job(0, 10, 5, generated=1)
    batch.join(job)
    batch.step(2)
    batch.leave(job)
    batch.join(job)
    assert batch.until_end == 2
    batch.step(2)
    assert batch.ended() == [job]
    assert batch.ended() == []


@given(
    st.integers(1, 400),
    st.floats(1e-3, 0.1),
    st.one_of(st.just(0.0), st.floats(1e-9, 1e-4)),
    st.floats(0.01, 0.99),
)
def test_steps_within_counts_the_steps_begun(
    count: int, first_s: float, growth_s: float, part: float
) -> None:
    walked_s = sum(first_s + growth_s * step for step in range(count))
    assert steps_s(count, first_s, growth_s) == pytest.approx(walked_s, rel=1e-12)
    last_s = first_s + growth_s * (count - 1)
    assert steps_within(walked_s - part * last_s, first_s, growth_s) == count
    assert steps_within(0.0, first_s, growth_s) == 1
