"""How long a simulated answer is."""

import math
from statistics import NormalDist

from xxhash import xxh3_64_intdigest

_NORMAL = NormalDist()


def drawn_tokens(prompt: bytes, seed: int, median: float, sigma: float) -> int:
    """Tokens until a model would end by itself: exp(ln median + sigma * z), at least 1.

    z is standard normal and a function of the prompt and the seed alone, so that both workers of a pair,
    and the same request tomorrow, draw the same.
    """
    uniform = (xxh3_64_intdigest(prompt, seed=seed & (1 << 64) - 1) + 0.5) / 2.0**64
    return max(1, round(math.exp(math.log(median) + sigma * _NORMAL.inv_cdf(min(uniform, 1 - 1e-12)))))
