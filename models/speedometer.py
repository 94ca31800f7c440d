"""How fast a worker is, from its own cumulative counters and those of workers like it."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvferry.policy.worker import Speed, Worker

MIN_PREFILL_TOKENS = 256.0  # fewer come from warm-up prompts, whose fixed cost says little
MIN_DECODE_STEPS = 20.0
# A worker's own counters weigh against this much of its like's: one slow prompt must not make a worker
# look slow for good, since a worker that is not chosen cannot show better.
LIKE_TOKENS = 8192.0
LIKE_STEPS = 100.0
# Older evidence gives way to newer beyond this much: a worker that changes is believed soon.
MOST_TOKENS = 4 * LIKE_TOKENS
MOST_STEPS = 4 * LIKE_STEPS
MEMORY_S = 120.0
MOMENTS = 5
MAX_SHARE_WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """Prefilled tokens and the seconds they took; of those that the router sent itself, how many there were
    and what the prior expected of them; decode steps as moment sums over steps: count, sum b, sum t,
    sum b^2, sum b t (b: batch size, t: microseconds)."""

    tokens: float = 0.0
    busy_s: float = 0.0
    sent_tokens: float = 0.0
    expected_s: float = 0.0
    steps: tuple[float, ...] = (0.0,) * MOMENTS

    def plus(self, other: "Evidence", weight: float = 1.0, steps_weight: float | None = None) -> "Evidence":
        by = weight if steps_weight is None else steps_weight
        return Evidence(
            self.tokens + weight * other.tokens,
            self.busy_s + weight * other.busy_s,
            self.sent_tokens + weight * other.sent_tokens,
            self.expected_s + weight * other.expected_s,
            tuple(mine + by * theirs for mine, theirs in zip(self.steps, other.steps, strict=True)),
        )


@dataclass(slots=True)
class Speedometer:
    """Reads total_prefill_uncached_tokens, total_prefill_busy_us and decode_moments of GET /v1/loads.

    What the counters gained is remembered with a time constant of MEMORY_S. Prefill speed is tokens over
    busy time; where the prior knows how prefill grows with length, it is the prior at the pace at which
    the prompts sent there (`prefilled`) were computed. Decode steps are fitted as base + per_sequence *
    batch when batches varied, else their mean is the base. Both are drawn towards workers that are `alike`.
    """

    prior: Speed
    share: float = 0.0
    seen: Evidence = field(default_factory=Evidence)
    _sent: Evidence = field(default_factory=Evidence)
    _last: Evidence = field(default_factory=Evidence)
    _last_s: float | None = None

    def read(self, answer: Mapping[str, Any], time_s: float) -> Speed:
        """Take in one poll; returns the speed as its own counters alone show it."""
        now = _counters(answer.get("loads") or [])
        restarted = now.tokens < self._last.tokens or now.busy_s < self._last.busy_s
        restarted = restarted or now.steps[0] < self._last.steps[0]
        gained = now if restarted else now.plus(self._last, -1.0)
        if self._last_s is not None and time_s > self._last_s:
            elapsed_s = time_s - self._last_s
            self.seen = _faded(self.seen, math.exp(-elapsed_s / MEMORY_S))
            weight = min(1.0, elapsed_s / MAX_SHARE_WINDOW_S)
            self.share += weight * (min(1.0, gained.busy_s / elapsed_s) - self.share)
        self.seen = self.seen.plus(gained).plus(self._sent)
        self._sent = Evidence()
        self._last, self._last_s = now, time_s
        return self._speed(self.seen)

    def prefilled(self, new_tokens: float, cached_tokens: float) -> None:
        """A prompt of the router's own was computed there."""
        prior = self.prior
        expected_s = prior.prefill_base_s + new_tokens * (
            prior.prefill_s_per_token + prior.prefill_s_per_token2 * (cached_tokens + 0.5 * new_tokens)
        )
        self._sent = self._sent.plus(Evidence(sent_tokens=new_tokens, expected_s=expected_s))

    def among(self, like: Iterable["Speedometer"]) -> Speed:
        """The speed, drawn towards that of workers like this one (itself among them)."""
        pool = Evidence()
        for meter in like:
            pool = pool.plus(meter.seen)
        tokens, steps = max(pool.tokens, LIKE_TOKENS), max(pool.steps[0], LIKE_STEPS)
        return self._speed(self.seen.plus(pool, LIKE_TOKENS / tokens, LIKE_STEPS / steps))

    def _speed(self, evidence: Evidence) -> Speed:
        speed = self.prior
        known = evidence.tokens >= MIN_PREFILL_TOKENS and evidence.busy_s > 0
        if known and self.prior.prefill_s_per_token2 > 0.0 and evidence.sent_tokens >= MIN_PREFILL_TOKENS:
            pace = evidence.busy_s / evidence.tokens * evidence.sent_tokens / evidence.expected_s
            speed = dataclasses.replace(
                speed,
                prefill_base_s=pace * speed.prefill_base_s,
                prefill_s_per_token=pace * speed.prefill_s_per_token,
                prefill_s_per_token2=pace * speed.prefill_s_per_token2,
                reported=True,
            )
        elif known:
            speed = dataclasses.replace(
                speed,
                prefill_base_s=0.0,
                prefill_s_per_token=evidence.busy_s / evidence.tokens,
                prefill_s_per_token2=0.0,
                reported=True,
            )
        if evidence.steps[0] >= MIN_DECODE_STEPS:
            base_s, per_sequence_s = _fit(evidence.steps)
            speed = dataclasses.replace(
                speed,
                decode_base_s=base_s,
                decode_s_per_sequence=per_sequence_s,
                decode_s_per_context_token=0.0,
                reported=True,
            )
        return speed


def alike(worker: Worker) -> tuple[object, ...]:
    """What workers must have in common to be equally fast: chunks are what decodes share steps with."""
    return worker.model, worker.role, worker.facts.get("gpu"), worker.layout.tp, worker.speed.chunk_tokens


def _faded(seen: Evidence, factor: float) -> Evidence:
    """Weighing less, but never too little to be used: an idle worker's old figure beats the prior."""

    def weight(amount: float, least: float, most: float) -> float:
        amount = max(amount, 1e-9)
        return min(max(factor, min(1.0, least / amount)), most / amount)

    return Evidence().plus(
        seen,
        weight(seen.tokens, MIN_PREFILL_TOKENS, MOST_TOKENS),
        weight(seen.steps[0], MIN_DECODE_STEPS, MOST_STEPS),
    )


def _counters(ranks: Sequence[Mapping[str, Any]]) -> Evidence:
    """Tokens and steps add up over DP ranks; busy time passes on all of them at once."""
    moments = [
        [float(value) for value in rank["decode_moments"][:MOMENTS]]
        for rank in ranks
        if len(rank.get("decode_moments") or ()) >= MOMENTS
    ]
    return Evidence(
        tokens=float(sum(rank.get("total_prefill_uncached_tokens") or 0 for rank in ranks)),
        busy_s=sum(rank.get("total_prefill_busy_us") or 0 for rank in ranks) * 1e-6 / max(1, len(ranks)),
        steps=tuple(sum(column) for column in zip(*moments, strict=True)) or (0.0,) * MOMENTS,
    )


def _fit(steps: Sequence[float]) -> tuple[float, float]:
    """(base, per sequence) seconds of a decode step, neither negative."""
    count, sum_b, sum_t, sum_bb, sum_bt = steps
    mean_s = sum_t / count * 1e-6
    variance = sum_bb / count - (sum_b / count) ** 2
    if variance < 0.25:
        return mean_s, 0.0
    slope = (sum_bt / count - sum_b * sum_t / count**2) / variance * 1e-6
    slope = min(max(slope, 0.0), mean_s / (sum_b / count))
    return max(0.0, mean_s - slope * sum_b / count), slope  # the difference of equals may be a hair below 0
