"""One engine: jumped equals walked, every request ends once, KV in is KV out."""

from dataclasses import dataclass, replace

import pytest
from engine_worlds import SPEC, Slow, SlowEngine, check_empty, engine_of, heard, run_checked
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.models.simulator.engine import Engine
from kvferry.models.simulator.job import Job
from kvferry.policy.worker import Role

ROOMY = replace(SPEC, max_total_tokens=10_000_000, prefix_cache=False, max_running_requests=4)
WORK = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 900), st.integers(1, 40)), min_size=1, max_size=8
)


@given(WORK, st.booleans(), st.lists(st.floats(0.0, 4.0), max_size=5))
@settings(max_examples=60)
def test_jumped_equals_walked(work: list[tuple[int, int, int]], mixed: bool, looks_s: list[float]) -> None:
    """Nor does it matter when somebody looks, or cuts a jump in two for nothing."""
    spec = replace(ROOMY, mixed_chunk=mixed)
    time_s, slow = 0.0, list[Slow]()
    for gap_ms, prompt, output in work:
        time_s += gap_ms * 1.00237e-3 + 1.7e-7  # never at the very moment at which a step ends
        slow.append(Slow(time_s, prompt, output))
    walked = SlowEngine(spec)
    walked.run(slow)
    engine = engine_of(spec)
    jobs = [Job(row, one.prompt, one.output) for row, one in enumerate(slow)]
    for one, job in zip(slow, jobs, strict=True):
        engine.events.at(one.arrival_s, engine.submit, job)
    for look_s in looks_s:
        engine.events.at(look_s, engine.loads)
        engine.events.at(look_s, engine.abort, Job(99, 1, 1))
    engine.events.run()
    assert [job.first_token_s for job in jobs] == pytest.approx([one.first_s for one in slow], abs=1e-9)
    assert [job.end_s for job in jobs] == pytest.approx([one.end_s for one in slow], abs=1e-9)
    assert engine.steps_done == walked.steps
    loads = engine.loads()
    assert loads["total_prefill_uncached_tokens"] == walked.prefill_tokens
    assert loads["total_prefill_busy_us"] == pytest.approx(1e6 * walked.prefill_busy_s)
    pure = walked.pure
    assert loads["decode_moments"] == pytest.approx(
        [
            len(pure),
            sum(b for b, _ in pure),
            sum(1e6 * t for _, t in pure),
            sum(b * b for b, _ in pure),
            sum(1e6 * b * t for b, t in pure),
        ]
    )


@dataclass(frozen=True)
class Ask:
    """What comes when, and when its client hangs up."""

    time_s: float
    prompt: int
    output: int
    family: int
    remote: bool
    abort_s: float | None


ASKS = st.lists(
    st.builds(
        Ask,
        st.floats(0.0, 1.5),
        st.integers(1, 1100),
        st.integers(1, 300),
        st.integers(0, 2),
        st.booleans(),
        st.one_of(st.none(), st.floats(0.0, 3.0)),
    ),
    min_size=1,
    max_size=10,
)
SPECS = st.builds(
    lambda role, local, mixed, room, reserve, cache: replace(
        SPEC,
        role=role,
        local_prefill=local,
        mixed_chunk=mixed,
        max_total_tokens=room,
        reserve_tokens=reserve,
        prefix_cache=cache,
        max_running_requests=3,
    ),
    st.sampled_from(Role),
    st.booleans(),
    st.booleans(),
    st.integers(200, 1600),
    st.sampled_from([0, 20, 512]),
    st.booleans(),
)


def hang_up(engine: Engine, job: Job, heard_by_then: dict[Job, list[str]]) -> None:
    if not heard(engine).ends(job):
        engine.abort(job)
        heard_by_then[job] = heard(engine).of(job)


def return_(engine: Engine) -> None:
    if not engine.alive:
        engine.revive()


@given(SPECS, ASKS, st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.01, 0.5)), max_size=2))
@settings(max_examples=250)
def test_every_request_ends_once_and_kv_in_is_kv_out(
    spec: object, asks: list[Ask], deaths: list[tuple[float, float]]
) -> None:
    engine = engine_of(spec, sigma=0.1)  # type: ignore[arg-type]
    events, told = engine.events, heard(engine)
    jobs: list[Job] = []
    heard_by_then: dict[Job, list[str]] = {}
    for row, ask in enumerate(asks):
        blocks = [1000 * ask.family + place for place in range(ask.prompt // 64)]
        job = Job(row, ask.prompt, ask.output, blocks)
        jobs.append(job)
        remote = engine.spec.role is Role.DECODE and (ask.remote or not engine.spec.local_prefill)
        events.at(ask.time_s, engine.expect if remote else engine.submit, job)
        if ask.abort_s is not None and ask.abort_s > ask.time_s:
            events.at(ask.abort_s, hang_up, engine, job, heard_by_then)
    for death_s, down_s in deaths:
        events.at(death_s, engine.die)
        events.at(death_s + down_s, return_, engine)
    run_checked(engine)
    check_empty(engine)
    last_s = max((death_s + down_s for death_s, down_s in deaths), default=-1.0)
    for job, ask in zip(jobs, asks, strict=True):
        words = told.of(job)
        assert words.count("first_token") <= 1
        assert told.ends(job) <= 1
        if job in heard_by_then:
            assert words == heard_by_then[job]
        elif ask.time_s > last_s:
            assert told.ends(job) == 1
        grown = ask.prompt + (ask.output - 1 if engine.spec.role is not Role.PREFILL else 0)
        if "finished" in words:
            assert grown <= engine.spec.max_total_tokens
        if "failed" in words:
            # one that was kept aside comes back with its last token, for which it had no room before
            assert grown + 1 > engine.spec.max_total_tokens


@dataclass
class Eager:
    """Asks the engine for more whenever it says something."""

    spare: list[Job]
    seen: list[tuple[str, float]]

    def _more(self, what: str, engine: Engine) -> None:
        self.seen.append((what, engine.events.now_s))
        if self.spare:
            job = self.spare.pop()
            (engine.submit if engine.spec.prefills and len(self.spare) % 2 else engine.expect)(job)

    def granted(self, engine: Engine, job: Job) -> None:
        self._more("granted", engine)
        engine.arrive(job)

    def chunk(self, engine: Engine, job: Job, tokens: int) -> None:
        self._more("chunk", engine)

    def first_token(self, engine: Engine, job: Job) -> None:
        self._more("first_token", engine)

    def finished(self, engine: Engine, job: Job) -> None:
        self._more("finished", engine)

    def failed(self, engine: Engine, job: Job) -> None:
        self._more("failed", engine)


@pytest.mark.parametrize("first", [Job(0, 50, 1), Job(0, 50, 9), Job(0, 9999, 9)], ids=str)
def test_hooks_may_ask_for_more_and_never_start_two_steps(first: Job) -> None:
    first = Job(0, first.prompt_tokens, first.output_tokens)
    engine = engine_of(replace(SPEC, role=Role.DECODE, local_prefill=True, max_total_tokens=5000))
    eager = Eager([Job(row, 60, 1 + row % 3) for row in range(1, 9)], [])
    engine._hooks = eager
    pending: list[int] = []

    def watch() -> None:
        pending.append(sum(entry[2].call is not None for entry in engine.events._heap))

    engine.expect(first)
    while engine.events.next_s is not None:
        watch()
        engine.events.run(engine.events.next_s)
    assert max(pending) == 1
    check_empty(engine)
    assert [what for what, _ in eager.seen].count("finished") == 8 + (first.prompt_tokens < 5000)


def test_what_a_hook_asks_for_is_heard_within_a_step() -> None:
    """A decode that arrives first runs alone, for 300 steps, unless the next one is let in between."""
    engine = engine_of(replace(SPEC, role=Role.DECODE))
    told, later = heard(engine), Job(1, 50, 5)
    first_token = told.first_token

    def and_another(engine: Engine, job: Job) -> None:
        first_token(engine, job)
        if job.row == 0:
            engine.expect(later)

    told.first_token = and_another  # type: ignore[method-assign]
    first = Job(0, 50, 300)
    engine.expect(first)
    engine.events.run()
    assert later.first_token_s < first.first_token_s + 0.2
    assert later.end_s < first.end_s


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.9, 1.0 - 1e-6])
def test_an_aborted_request_is_never_heard_of_again_even_in_its_last_step(role: Role, part: float) -> None:
    def begun() -> tuple[Engine, Job]:
        engine, job = engine_of(replace(SPEC, role=role)), Job(0, 300, 3)
        (engine.expect if role is Role.DECODE else engine.submit)(job)
        return engine, job

    engine, job = begun()
    engine.events.run()
    whole_s = job.end_s if role is not Role.PREFILL else job.prefill_end_s
    engine, job = begun()
    engine.events.run(part * whole_s)
    words = heard(engine).of(job)
    assert "finished" not in words
    engine.abort(job)
    engine.abort(job)
    engine.events.run()
    assert heard(engine).of(job) == words
    check_empty(engine)


def test_counters_of_a_moment() -> None:
    engine = engine_of(replace(SPEC, prefix_cache=False))
    first, second, third = Job(0, 100, 300), Job(1, 600, 10), Job(2, 70, 10)
    engine.submit(first)
    engine.events.run(1.0)
    loads = engine.loads()
    steps = engine._steps_begun()
    assert steps > 10
    assert (loads["num_running_reqs"], loads["num_waiting_reqs"]) == (1, 0)
    assert loads["num_used_tokens"] == loads["num_total_tokens"] == 100 + steps
    engine.submit(second)
    engine.submit(third)
    loads = engine.loads()
    assert (loads["num_waiting_reqs"], loads["num_waiting_uncached_tokens"]) == (2, 670)
    engine.events.run(engine.events.now_s + 0.05)
    assert engine.computing_tokens == 255  # the chunk, less the one decode
    engine.events.run(engine.events.now_s + 0.05)
    loads = engine.loads()
    assert loads["num_waiting_uncached_tokens"] == 670 - 255
    engine.events.run()
    loads = engine.loads()
    assert (loads["num_running_reqs"], loads["num_waiting_reqs"], loads["num_used_tokens"]) == (0, 0, 0)
    assert loads["total_prefill_uncached_tokens"] == 770


def test_counters_of_the_disaggregated_queues() -> None:
    prefill = engine_of(replace(SPEC, role=Role.PREFILL, max_total_tokens=1000))
    prefill.submit(Job(0, 600, 1))
    prefill.submit(Job(1, 600, 1))
    while not prefill.held:
        prefill.events.run(prefill.events.next_s or 0.0)
    loads = prefill.loads()
    assert loads["disaggregation"]["prefill_inflight_queue_reqs"] == 1
    assert (loads["num_waiting_reqs"], loads["num_used_tokens"]) == (1, 600)
    decode = engine_of(replace(SPEC, role=Role.DECODE, max_total_tokens=1000, reserve_tokens=0))
    for row in range(2):
        decode.expect(Job(row, 600, 300))
    queues = decode.loads()["disaggregation"]
    assert (queues["decode_transfer_queue_reqs"], queues["decode_prealloc_queue_reqs"]) == (1, 1)
    assert decode.loads()["num_used_tokens"] == 600


def test_a_worker_that_returns_is_empty_and_counts_from_zero() -> None:
    engine = engine_of(SPEC)
    engine.submit(Job(0, 500, 50))
    engine.events.run(0.3)
    engine.die()
    engine.submit(Job(1, 500, 50))
    assert engine.events.next_s is None
    engine.revive()
    check_empty(engine)
    assert engine.loads()["total_prefill_uncached_tokens"] == 0
    job = Job(2, 500, 50)
    engine.submit(job)
    engine.events.run()
    assert heard(engine).ends(job) == 1
    assert job.cached_tokens == 0


def test_a_conversation_finds_what_its_last_turn_left() -> None:
    engine = engine_of(SPEC)
    turns = [Job(turn, 100 * (turn + 1), 5, list(range(100 * (turn + 1) // 64))) for turn in range(5)]
    for turn, job in enumerate(turns):
        engine.events.at(10.0 * turn, engine.submit, job)
    engine.events.run()
    assert [job.cached_tokens for job in turns] == [0, 64, 192, 256, 384]


def test_slower_workers_take_longer_by_just_that() -> None:
    ends = []
    for speed in (1.0, 0.5):
        engine = engine_of(SPEC)
        engine._pace = 1.0 / speed
        job = Job(0, 700, 50)
        engine.submit(job)
        engine.events.run()
        ends.append(job.end_s)
    assert ends[1] == pytest.approx(2.0 * ends[0])
