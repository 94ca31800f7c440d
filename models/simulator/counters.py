"""What an engine counts and tells its router, in the words of SGLang's GET /v1/loads."""

from typing import Any


class Counters:
    """Cumulative. Decode moments are count, sum b, sum t, sum b^2, sum b t over pure decode steps (b: batch
    size, t: microseconds)."""

    __slots__ = ("moments", "prefill_busy_s", "prefill_tokens")

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.prefill_busy_s = 0.0
        self.moments = [0.0] * 5

    def prefilled(self, tokens: int, took_s: float) -> None:
        """A step with prefill."""
        self.prefill_tokens += tokens
        self.prefill_busy_s += took_s

    def decoded(self, batch: int, steps: int, took_s: float) -> None:
        """Some pure decode steps of one batch."""
        took_us = took_s * 1e6
        moments = self.moments
        moments[0] += steps
        moments[1] += steps * batch
        moments[2] += took_us
        moments[3] += steps * batch * batch
        moments[4] += batch * took_us

    def told(self) -> dict[str, Any]:
        return {
            "total_prefill_uncached_tokens": self.prefill_tokens,
            "total_prefill_busy_us": self.prefill_busy_s * 1e6,
            "decode_moments": list(self.moments),
        }
