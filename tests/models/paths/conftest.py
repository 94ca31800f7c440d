"""Moves over paths whose figures are known."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kvferry.models.paths.sample import Sample

SIZES = tuple(4096 * 4**step for step in range(9))
PIECES = (1, 16, 256, 1024)
Takes = Callable[[float, float], float]


class Moves:
    """Samples of 4 KiB to 256 MiB in 1 to 1024 descriptors."""

    cells = tuple((size, pieces) for size in SIZES for pieces in PIECES if size // pieces >= 1024)

    @classmethod
    def over(
        cls,
        takes: Takes,
        seed: int = 0,
        noise: float = 0.07,
        odd: float = 0.0,
        repeats: int = 3,
        cells: Sequence[tuple[int, int]] | None = None,
        concurrency: int = 1,
    ) -> list[Sample]:
        """`noise`: standard deviation of ln(time); `odd`: share of moves that were held up, 3 to 30 times."""
        rng = np.random.default_rng(seed)
        samples = []
        for _ in range(repeats):
            for size, pieces in cells or cls.cells:
                took_s = takes(size, pieces) * float(np.exp(rng.normal(0.0, noise)))
                if rng.random() < odd:
                    took_s *= rng.uniform(3.0, 30.0)
                samples.append(Sample(size, pieces, took_s, concurrency))
        return samples

    @staticmethod
    def line(alpha_us: float, ns_per_byte: float, gamma_us: float) -> Takes:
        return lambda size, pieces: 1e-6 * alpha_us + 1e-9 * ns_per_byte * size + 1e-6 * gamma_us * pieces


@pytest.fixture(scope="session")
def moves() -> type[Moves]:
    return Moves
