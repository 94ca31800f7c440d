"""Whether one arm misses its objectives more often than another, watched without pause.

Requests are assigned to arms at random, with known shares. Where arm `a` misses no more often than arm `b`,
whatever the two rates are at the time, a miss belongs to `a` (rather than `b`) with probability at most
pi = share_a / (share_a + share_b), given all that went before. So for any ratio r > 1 the product over misses
of r / (1 + pi (r - 1)), where the miss is `a`'s, and of 1 / (1 + pi (r - 1)), where it is `b`'s, is a
supermartingale that begins at 1, and so is its mean over several r; by Ville's inequality it ever passes
1 / alpha with probability alpha at most. The same holds of requests that were met, with `a` and `b` changed
over. One may look after every request and stop when one likes (Robbins 1970, "Statistical methods related to
the law of the iterated logarithm"; Ramdas et al. 2023, "Game-theoretic statistics and safe anytime-valid
inference"). Rates that drift, as load does, do not matter: both arms have them.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# The ratios of miss rates that are looked for: 1.1, 1.2, 1.4, ... 26.6.
RATIOS = tuple(1.0 + 0.1 * 2.0**step for step in range(9))


@dataclass(frozen=True, slots=True)
class Arm:
    """Requests of one arm that were judged, how many of them missed, and the share assigned to it."""

    requests: int
    missed: int
    share: float


Pair = tuple[Arm, Arm]


def log_evidence(pairs: Iterable[Pair]) -> float:
    """ln of the evidence that the first arms of `pairs` miss more often than the second ones.

    Each pair is a stretch of time, or a router, with shares of its own. 0: none so far; it may be negative.
    """
    known = [(a, b) for a, b in pairs if a.share > 0.0 and b.share > 0.0]
    misses = _mixture(known, lambda a, b: (a.missed, b.missed, a.share / (a.share + b.share)))
    met = _mixture(
        known,
        lambda a, b: (b.requests - b.missed, a.requests - a.missed, b.share / (a.share + b.share)),
    )
    return misses + _mean((0.0, met))


def is_worse(pairs: Iterable[Pair], alpha: float) -> bool:
    """Whether the first arms miss more often. Wrong, where they do not, with probability `alpha` at most over
    all times that one looks."""
    return log_evidence(pairs) >= -math.log(alpha)


def _mixture(pairs: Iterable[Pair], counts: Callable[[Arm, Arm], tuple[int, int, float]]) -> float:
    """ln of the mean over RATIOS; `counts`: events of the suspect, of the other, and the suspect's share."""
    told = [counts(a, b) for a, b in pairs]
    return _mean(
        tuple(
            sum(
                own * math.log(ratio) - (own + other) * math.log1p(share * (ratio - 1.0))
                for own, other, share in told
            )
            for ratio in RATIOS
        )
    )


def _mean(logs: tuple[float, ...]) -> float:
    most = max(logs)
    return most + math.log(sum(math.exp(each - most) for each in logs) / len(logs))
