"""How long each batch took, and with it how long a chunk of prefill held running decodes up."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One batch: `tokens` prefilled (0: a decode step) while `decodes` requests waited for their token."""

    tokens: int
    decodes: int
    took_s: float


class StallMeter:
    """Pairs launches with results, in order, as both event loops do: the overlapped one launches a batch
    before it has the result of the one before.

    A batch took from its launch, or from the end of the one before it where that came later, to its own end.
    `stalls` chunks, of `stalled_tokens` in all, held decodes up for `stall_s` in all. Times are in seconds on
    one monotonic clock.
    """

    def __init__(self) -> None:
        self.stalls = 0
        self.stalled_tokens = 0
        self.stall_s = 0.0
        self._launched: deque[tuple[float, int, int]] = deque()
        self._ended_s = float("-inf")

    def launched(self, at_s: float, tokens: int, decodes: int) -> None:
        """A batch goes to the device."""
        self._launched.append((at_s, tokens, decodes))

    def ended(self, at_s: float, prefill: bool) -> Step | None:
        """Its result is there. None when it does not match the launch: then all that is open is forgotten."""
        if not self._launched or (self._launched[0][1] > 0) != prefill:
            self._launched.clear()
            self._ended_s = at_s
            return None
        launched_s, tokens, decodes = self._launched.popleft()
        step = Step(tokens, decodes, max(0.0, at_s - max(launched_s, self._ended_s)))
        self._ended_s = at_s
        if tokens and decodes:
            self.stalls += 1
            self.stalled_tokens += tokens
            self.stall_s += step.took_s
        return step
