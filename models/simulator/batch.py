"""The running decodes of one engine: O(1) a step, whatever their number."""

import math
from heapq import heappop, heappush

from kvferry.models.simulator.job import Job


class Batch:
    """`size` requests with `context_tokens` tokens of KV in all, after `clock` decode steps.

    A step gives every request one token, so a request's end is known as a step when it joins; a heap of
    those steps is all that has to be kept.
    """

    __slots__ = ("_ends", "_joined", "clock", "context_tokens", "size")

    def __init__(self) -> None:
        self.size = 0
        self.context_tokens = 0
        self.clock = 0
        self._joined = 0
        self._ends: list[tuple[int, int, Job]] = []

    def join(self, job: Job) -> None:
        """`job` has `generated` tokens and gets its next one in the next step."""
        self._joined += 1
        job.order = self._joined
        job.finish_step = self.clock + job.output_tokens - job.generated
        self.size += 1
        self.context_tokens += job.prompt_tokens + job.generated
        heappush(self._ends, (job.finish_step, job.order, job))

    def leave(self, job: Job) -> None:
        """A running request goes before its end; its `generated` is brought up to date."""
        job.generated = job.output_tokens - (job.finish_step - self.clock)
        self.size -= 1
        self.context_tokens -= job.prompt_tokens + job.generated
        job.finish_step = -1

    def step(self, count: int = 1) -> None:
        """`count` steps have passed, at most `until_end`."""
        self.clock += count
        self.context_tokens += self.size * count

    @property
    def until_end(self) -> int:
        """Steps until the next request ends."""
        self._forget()
        return self._ends[0][0] - self.clock

    def ended(self) -> list[Job]:
        """Take out the requests whose last token is out."""
        done: list[Job] = []
        while self._ends and (self._ends[0][0] <= self.clock or self._stale(self._ends[0])):
            entry = heappop(self._ends)
            if not self._stale(entry):
                job = entry[2]
                self.leave(job)
                done.append(job)
        return done

    def latest(self) -> Job:
        """The request that joined last. O(size): for the rare retraction only."""
        return max((entry for entry in self._ends if not self._stale(entry)), key=lambda entry: entry[1])[2]

    def jobs(self) -> list[Job]:
        """All running requests, in the order in which they joined."""
        running = [entry for entry in self._ends if not self._stale(entry)]
        return [entry[2] for entry in sorted(running, key=lambda entry: entry[1])]

    def _stale(self, entry: tuple[int, int, Job]) -> bool:
        return entry[2].finish_step != entry[0] or entry[2].order != entry[1]

    def _forget(self) -> None:
        while self._ends and self._stale(self._ends[0]):
            heappop(self._ends)


def steps_within(elapsed_s: float, first_s: float, growth_s: float) -> int:
    """How many steps have begun after `elapsed_s`, when step i (from 0) takes first_s + i * growth_s.

    The sum of k steps is k first_s + growth_s k (k - 1) / 2; the smallest k whose sum is not under
    `elapsed_s`, at least 1.
    """
    if growth_s <= 0.0:
        return max(1, math.ceil(elapsed_s / first_s - 1e-9))
    half = 0.5 * growth_s
    linear = first_s - half
    root = (-linear + math.sqrt(linear * linear + 4.0 * half * elapsed_s)) / (2.0 * half)
    return max(1, math.ceil(root - 1e-9))


def steps_s(count: int, first_s: float, growth_s: float) -> float:
    """Seconds of `count` such steps."""
    return count * first_s + growth_s * (count * (count - 1) // 2)
