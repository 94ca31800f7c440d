"""What changing the layout of moved KV takes, per byte, for each kind of layout relation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvferry.models.terms.pool import Pool, Prior

HALF_LIFE_S = 1800.0
JITTER_S = 1e-4
# Nothing measured is behind what is assumed of a gigabyte: it may as well take this much more.
UNSURE_S = 0.05


def new_pool() -> Pool:
    """Kinds of relations have nothing in common."""
    return Pool(size=1, half_life_s=HALF_LIFE_S, class_at=0, members_differ=1.0)


@dataclass(slots=True, eq=False)
class Repacks:
    """repack = f * bytes, f in seconds per byte of a kind of relation (kept per gigabyte)."""

    pool: Pool = field(default_factory=new_pool)

    def done(
        self, relation: str, assumed_s_per_byte: float, moved_bytes: float, took_s: float, now_s: float
    ) -> None:
        """`moved_bytes` were repacked; `assumed_s_per_byte`: where nothing is known of it."""
        if moved_bytes > 0.0:
            prior = _prior(assumed_s_per_byte)
            self.pool.learn((relation,), prior, (moved_bytes * 1e-9,), took_s, 0.0, JITTER_S, now_s)

    def s_per_byte(self, relations: Sequence[str], assumed: Sequence[float], now_s: float) -> list[float]:
        """Of each relation, given what is assumed where nothing is known."""
        known = {key[0] for key in self.pool.members.known()}
        found = list(assumed)
        for place, relation in enumerate(relations):
            if relation in known:
                prior = _prior(assumed[place])
                (belief,) = self.pool.beliefs([(relation,)], lambda _, prior=prior: prior, now_s)  # type: ignore[misc]
                found[place] = float(belief.mean[0]) * 1e-9
        return found


def _prior(assumed_s_per_byte: float) -> Prior:
    per_gb_s = assumed_s_per_byte * 1e9
    return Prior(np.array((per_gb_s,)), np.array((per_gb_s + UNSURE_S,)), np.array((0.0,)))
