"""Fitting step times to latencies of whole engine steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvferry.models.simulator.steps import StepTimes
from kvferry.models.workload.base import Floats

Knots = tuple[tuple[int, float], ...]
DECODE_KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
# A kernel's tile ends at a power of two: the next token opens another one, which L shows as a step.
TOKEN_KNOTS = tuple(
    sorted({*(1 << power for power in range(5, 15)), *(n + 8 for n in (1024, 2048, 4096)), 1280})
)


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step of `decodes` decodes over `context` tokens in all, beside `tokens` prefill tokens.

    `attention`: sum over prompts of n (p + n / 2), n of its tokens being computed after p.
    """

    decodes: int
    context: float
    tokens: int
    attention: float
    seconds: float

    @property
    def kind(self) -> str:
        return "decode" if not self.tokens else "mixed" if self.decodes else "prefill"


@dataclass(frozen=True, slots=True)
class StepFit:
    """D and L as knots (count, seconds) of lines, and the other terms of StepTimes."""

    decode_s: Knots
    tokens_s: Knots
    attention_s: float
    context_s: float
    mixed_s: float

    def bake(self) -> StepTimes:
        """Both tables for every integer from 0 to their last knot; level before the first one."""
        return StepTimes(
            baked(self.decode_s), baked(self.tokens_s), self.attention_s, self.context_s, self.mixed_s
        )

    def predict(self, sample: StepSample) -> float:
        if not sample.tokens:
            return _line(self.decode_s, sample.decodes) + self.context_s * sample.context
        base = _line(self.tokens_s, sample.tokens + sample.decodes) + self.attention_s * sample.attention
        return base + self.context_s * sample.context + (self.mixed_s if sample.decodes else 0.0)

    def errors(self, samples: Sequence[StepSample]) -> Mapping[str, tuple[float, float]]:
        """Median and 90th percentile of the relative error (absolute), by kind of step."""
        found: dict[str, list[float]] = {}
        for sample in samples:
            error = abs(self.predict(sample) / sample.seconds - 1)
            found.setdefault(sample.kind, []).append(error)
        return {kind: (float(np.median(e)), float(np.quantile(e, 0.9))) for kind, e in sorted(found.items())}


def baked(knots: Knots) -> list[float]:
    """The value at every integer from 0 to the last knot."""
    counts, values = zip(*knots, strict=True)
    line: list[float] = np.interp(np.arange(counts[-1] + 1), counts, values).tolist()
    return line


def fit_steps(samples: Sequence[StepSample], tolerance: float = 0.01) -> StepFit:
    """Least squares on relative errors, no term negative, D and L nowhere falling.

    Knots that a line between their neighbours replaces within `tolerance` (relative) are dropped, then
    the rest is fitted again. Samples beyond the last knot are left out.
    """
    used = [s for s in samples if s.decodes <= DECODE_KNOTS[-1] and s.tokens + s.decodes <= TOKEN_KNOTS[-1]]
    first = _solve(used, _covered(DECODE_KNOTS, used, 0), _covered(TOKEN_KNOTS, used, 1))
    thin = [tuple(count for count, _ in _thinned(k, tolerance)) for k in (first.decode_s, first.tokens_s)]
    return _solve(used, thin[0], thin[1])


def _covered(knots: tuple[int, ...], samples: Sequence[StepSample], mixed: int) -> tuple[int, ...]:
    """The knots that a sample sits on or within a twentieth of: the others would hang in the air."""
    at = np.array([s.tokens + s.decodes for s in samples if bool(s.tokens) == bool(mixed)])
    return tuple(knot for knot in knots if np.abs(at / knot - 1).min() < 0.05)


def _solve(samples: Sequence[StepSample], decode: tuple[int, ...], tokens: tuple[int, ...]) -> StepFit:
    wide = len(decode) + len(tokens)
    matrix = np.zeros((len(samples), wide + 3))
    for row, sample in zip(matrix, samples, strict=True):
        if sample.tokens:
            row[len(decode) : wide] = _hat(tokens, sample.tokens + sample.decodes)
        else:
            row[: len(decode)] = _hat(decode, sample.decodes)
        row[wide:] = sample.attention, sample.context, bool(sample.tokens and sample.decodes)
    seconds = np.array([sample.seconds for sample in samples])
    solution = _least_squares(matrix / seconds[:, None])
    return StepFit(
        decode_s=_rising(decode, solution[: len(decode)]),
        tokens_s=_rising(tokens, solution[len(decode) : wide]),
        attention_s=float(solution[wide]),
        context_s=float(solution[wide + 1]),
        mixed_s=float(solution[wide + 2]),
    )


def _least_squares(scaled: Floats) -> Floats:
    """The x >= 0 with scaled @ x nearest 1 (terms that come out negative are left out, worst first)."""
    used = list(range(scaled.shape[1]))
    while True:
        solution = np.linalg.lstsq(scaled[:, used], np.ones(len(scaled)), rcond=None)[0]
        if (solution >= 0).all():
            break
        used.pop(int(solution.argmin()))
    full = np.zeros(scaled.shape[1])
    full[used] = solution
    return full


def _hat(knots: tuple[int, ...], at: int) -> Floats:
    return np.array([np.interp(at, knots, np.eye(len(knots))[i]) for i in range(len(knots))])


def _rising(knots: tuple[int, ...], values: Floats) -> Knots:
    return tuple(zip(knots, np.maximum.accumulate(values).tolist(), strict=True))


def _line(knots: Knots, at: int) -> float:
    counts, values = zip(*knots, strict=True)
    return float(np.interp(at, counts, values))


def _thinned(knots: Knots, tolerance: float) -> Knots:
    kept = list(knots)
    while len(kept) > 2:
        # Against all dropped knots, not the current neighbours: else errors add up.
        costs = [_deviation(knots, (*kept[:i], *kept[i + 1 :])) for i in range(1, len(kept) - 1)]
        best = int(np.argmin(costs))
        if costs[best] > tolerance:
            break
        kept.pop(best + 1)
    return tuple(kept)


def _deviation(knots: Knots, kept: Knots) -> float:
    return max(abs(_line(kept, count) / value - 1) for count, value in knots)
