"""How far a running engine is between two of its events: for whoever streams tokens as they come."""

from kvferry.models.simulator.batch import steps_s, steps_within
from kvferry.models.simulator.engine import Engine
from kvferry.models.simulator.job import Job

_EPSILON_S = 1e-9


def tokens_out(engine: Engine, job: Job) -> int:
    """Output tokens of `job` that are out at `events.now_s`."""
    if job.finish_step < 0:
        return job.generated
    return job.output_tokens - (job.finish_step - engine.batch.clock) + _steps_ended(engine)


def boundary_s(engine: Engine, steps: int) -> float | None:
    """When `steps` more steps (at least one) will have ended, if nothing comes in between; the end of what
    the engine has planned by now where that is earlier. None when it is idle."""
    if engine._event is None:
        return None
    if engine._jump is None:
        return engine._event.time_s
    start_s, first_s, growth_s, count = engine._jump
    wanted = min(count, _steps_ended(engine) + max(1, steps))
    return max(engine.events.now_s, start_s + steps_s(wanted, first_s, growth_s))


def _steps_ended(engine: Engine) -> int:
    if engine._jump is None:
        return 0
    start_s, first_s, growth_s, count = engine._jump
    elapsed_s = engine.events.now_s - start_s + _EPSILON_S
    begun = min(count, steps_within(elapsed_s, first_s, growth_s))
    return begun if steps_s(begun, first_s, growth_s) <= elapsed_s else begun - 1
