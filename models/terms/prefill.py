"""What prompts take on each worker to be computed."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kvferry.models.speedometer import alike
from kvferry.models.terms.members import Key
from kvferry.models.terms.pool import Pool, Prior
from kvferry.policy.worker import Speed, Worker

HALF_LIFE_S = 600.0
WORKERS_DIFFER = 0.3
JITTER_S = 1e-3
# By how much of themselves, and by what at least, the counters' coefficients may be off.
OFF = 0.5
BASE_S = 1e-2
OF_TOKENS = 4096.0


def new_pool() -> Pool:
    return Pool(size=3, half_life_s=HALF_LIFE_S, class_at=1, members_differ=WORKERS_DIFFER)


@dataclass(slots=True, eq=False)
class Prefills:
    """Seconds of a prompt that has its worker's prefill to itself:

        prefill = a + b * new + c * new * (cached + new / 2)

    in new and cached tokens, per worker, drawn towards workers that are `alike`, and those towards what the
    worker's counters say (`Speedometer`), or the catalogue where they say nothing. Kept in thousands of
    tokens, for the sake of numbers of one size.
    """

    pool: Pool = field(default_factory=new_pool)

    def computed(
        self,
        worker: Worker,
        counted: Speed,
        new_tokens: float,
        cached_tokens: float,
        took_s: float,
        now_s: float,
    ) -> None:
        """A prompt was computed; `counted`: the worker's speed without what was learned here."""
        if new_tokens < 1.0 or cached_tokens < 0.0 or not took_s > 0.0:
            return
        x = (1.0, new_tokens * 1e-3, new_tokens * (cached_tokens + 0.5 * new_tokens) * 1e-6)
        self.pool.learn(key_of(worker), _prior(counted), x, took_s, 0.0, JITTER_S, now_s)

    def speeds(self, workers: Iterable[tuple[Worker, Speed]], now_s: float) -> list[Speed]:
        """The counted speeds with what was learned of prefills."""
        known = list(workers)
        if not self.pool.members:
            return [counted for _, counted in known]
        keys = [key_of(worker) for worker, _ in known]
        beliefs = self.pool.beliefs(keys, lambda place: _prior(known[place][1]), now_s)
        return [
            dataclasses.replace(
                counted,
                prefill_base_s=float(belief.mean[0]),
                prefill_s_per_token=float(belief.mean[1]) * 1e-3,
                prefill_s_per_token2=float(belief.mean[2]) * 1e-6,
                reported=counted.reported or belief.count >= 1.0,
            )
            for (_, counted), belief in zip(known, beliefs, strict=True)
        ]


def key_of(worker: Worker) -> Key:
    return worker.id, *map(str, alike(worker))


def _prior(counted: Speed) -> Prior:
    base_s, token_s, token2_s = (
        counted.prefill_base_s,
        counted.prefill_s_per_token * 1e3,
        counted.prefill_s_per_token2 * 1e6,
    )
    token_s = max(token_s, 1e-6)
    off = np.array((OFF * base_s + BASE_S, OFF * token_s, OFF * (token2_s + token_s / (OF_TOKENS * 1e-3))))
    return Prior(np.array((base_s, token_s, token2_s)), off, np.array((0.0, 1e-3 * token_s, 0.0)))
