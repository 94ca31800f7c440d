"""What engines tell, brought to the worker that each of them stands in."""

from kvferry.integrations.sglang.simulated.worker import SimulatedWorker
from kvferry.models.simulator.engine import Engine
from kvferry.models.simulator.job import Job


class Dispatch:
    """`engine.Hooks` of all engines of a process. `workers` by id of their engine's spec."""

    __slots__ = ("workers",)

    def __init__(self) -> None:
        self.workers: dict[str, SimulatedWorker] = {}

    def granted(self, engine: Engine, job: Job) -> None:
        self.workers[engine.spec.id].granted(job)

    def chunk(self, engine: Engine, job: Job, tokens: int) -> None:
        self.workers[engine.spec.id].rooms.chunk(job, tokens)

    def first_token(self, engine: Engine, job: Job) -> None:
        self.workers[engine.spec.id].first_token(job)

    def finished(self, engine: Engine, job: Job) -> None:
        self.workers[engine.spec.id].finished(job)

    def failed(self, engine: Engine, job: Job) -> None:
        self.workers[engine.spec.id].failed(job)
