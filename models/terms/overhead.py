"""What passes before a prompt's prefill starts though nothing is ahead of it."""

import math
from dataclasses import dataclass, field

STEP = 0.1
LEAST_S, MOST_S = 1e-4, 0.5
# A queue that is predicted to be longer than the overhead by more than this says nothing of it.
IDLE_S = 2e-3


@dataclass(slots=True)
class Overhead:
    """HTTP, tokenizer, handshake, until a scheduler looks: a running median, in seconds.

        base <- base * e^STEP when a request took longer, else base * e^-STEP;  within [LEAST_S, MOST_S]

    of requests that found nothing before them; the first one sets it. It is 0 until then.
    """

    base_s: float = 0.0
    count: int = 0

    def observe(self, predicted_s: float | None, actual_s: float | None) -> None:
        """`predicted_s`: the queue as it was predicted, an overhead included. What is missing, not finite or
        negative says nothing."""
        if predicted_s is None or actual_s is None:
            return
        if not (0.0 <= actual_s < math.inf and 0.0 <= predicted_s <= self.base_s + IDLE_S):
            return
        if not self.count:
            self.base_s = actual_s
        else:
            self.base_s *= math.exp(STEP if actual_s > self.base_s else -STEP)
        self.base_s = min(max(self.base_s, LEAST_S), MOST_S)
        self.count += 1


def _pair() -> tuple[Overhead, Overhead]:
    return Overhead(), Overhead()


@dataclass(frozen=True, slots=True)
class Overheads:
    """Of one model's colocated and split requests."""

    by_mode: tuple[Overhead, Overhead] = field(default_factory=_pair)

    @property
    def base_s(self) -> tuple[float, float]:
        """As `State.queue_base_s` has it."""
        return self.by_mode[0].base_s, self.by_mode[1].base_s
