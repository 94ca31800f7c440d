"""How fast a worker is, from its own cumulative counters."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvferry.policy.worker import Speed

MIN_PREFILL_TOKENS = 256  # fewer come from warm-up prompts, whose fixed cost says little
MIN_DECODE_STEPS = 20
MOMENTS = 5
FORGETTING = 0.9
MAX_SHARE_WINDOW_S = 5.0


@dataclass(slots=True)
class Speedometer:
    """Reads total_prefill_uncached_tokens, total_prefill_busy_us and decode_moments of GET /v1/loads.

    Prefill speed is tokens over busy time, both decayed by FORGETTING per poll in which work was done.
    Decode steps are fitted as base + per_sequence * batch from the moment sums (count, sum b, sum t,
    sum b^2, sum b t), when batches varied; else their mean is taken as the base.
    """

    prior: Speed
    tokens: float = 0.0
    busy_s: float = 0.0
    share: float = 0.0
    _last: dict[str, float] = field(default_factory=dict)
    _moments: list[float] = field(default_factory=list)

    def read(self, answer: Mapping[str, Any], time_s: float) -> Speed:
        """Take in one poll; returns the speed as now known (`reported` once the counters carry it)."""
        ranks = answer.get("loads") or []
        tokens = float(sum(rank.get("total_prefill_uncached_tokens") or 0 for rank in ranks))
        busy_s = sum(rank.get("total_prefill_busy_us") or 0 for rank in ranks) * 1e-6 / max(1, len(ranks))
        before = self._last or {"tokens": 0.0, "busy_s": 0.0, "time_s": time_s}
        if tokens < before["tokens"] or busy_s < before["busy_s"]:  # the worker restarted
            before = {"tokens": 0.0, "busy_s": 0.0, "time_s": time_s}
        done, spent_s = tokens - before["tokens"], busy_s - before["busy_s"]
        if done > 0:
            self.tokens = FORGETTING * self.tokens + done
            self.busy_s = FORGETTING * self.busy_s + spent_s
        elapsed_s = time_s - before["time_s"]
        if elapsed_s > 0:
            weight = min(1.0, elapsed_s / MAX_SHARE_WINDOW_S)
            self.share += weight * (min(1.0, spent_s / elapsed_s) - self.share)
        self._last = {"tokens": tokens, "busy_s": busy_s, "time_s": time_s}
        self._moments = [sum(column) for column in zip(*_moments(ranks), strict=False)]
        return self._speed()

    def _speed(self) -> Speed:
        speed = self.prior
        if self.tokens >= MIN_PREFILL_TOKENS and self.busy_s > 0:
            speed = dataclasses.replace(
                speed,
                prefill_base_s=0.0,
                prefill_s_per_token=self.busy_s / self.tokens,
                prefill_s_per_token2=0.0,
                reported=True,
            )
        if self._moments and self._moments[0] >= MIN_DECODE_STEPS:
            base_s, per_sequence_s = _fit(self._moments)
            speed = dataclasses.replace(
                speed,
                decode_base_s=base_s,
                decode_s_per_sequence=per_sequence_s,
                decode_s_per_context_token=0.0,
                reported=True,
            )
        return speed


def _moments(ranks: list[Mapping[str, Any]]) -> list[list[float]]:
    return [
        [float(value) for value in rank["decode_moments"]]
        for rank in ranks
        if len(rank.get("decode_moments") or ()) >= MOMENTS
    ]


def _fit(moments: list[float]) -> tuple[float, float]:
    """(base, per sequence) seconds of a decode step, neither negative."""
    count, sum_b, sum_t, sum_bb, sum_bt = moments[:MOMENTS]
    mean_s = sum_t / count * 1e-6
    variance = sum_bb / count - (sum_b / count) ** 2
    if variance < 0.25:
        return mean_s, 0.0
    slope = (sum_bt / count - sum_b * sum_t / count**2) / variance * 1e-6
    slope = min(max(slope, 0.0), mean_s / (sum_b / count))
    return mean_s - slope * sum_b / count, slope
