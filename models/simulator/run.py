"""What came of a simulated workload: one row per request."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvferry.models.simulator.spec import SLORule
from kvferry.models.workload.base import Floats, Ints

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """[N] columns in the order of arrival. Times are NaN for requests that never got a first token.

    `itl_s` is (last - first token) / (output - 1), 0 for an output of one token. `ok`: every token came.
    `pre`, `dec` index `workers` (equal when colocated; -1: never placed); `split` is the plan the request
    ended on; `rescued` counts plans given up before. `predicted_*` are the decision's medians.
    `aborted`: the run was cut short because its outcome was beyond doubt; rows without an end are not ok.
    """

    policy: str
    seed: int
    workers: tuple[str, ...]
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    ttft_s: Floats
    itl_s: Floats
    e2e_s: Floats
    ok: Bools
    split: Bools
    pre: Ints
    dec: Ints
    rescued: Ints
    cached_tokens: Ints
    moved_bytes: Floats
    queue_s: Floats
    transfer_s: Floats
    predicted_ttft_s: Floats
    predicted_itl_s: Floats
    predicted_transfer_s: Floats
    retractions: int
    engine_steps: int
    events: int
    end_s: float
    aborted: bool = False

    def __len__(self) -> int:
        return len(self.arrival_s)

    def met(self, slo: SLORule) -> Bools:
        """[N] whether both objectives were met."""
        ttft_slo_s = slo.ttft_s + slo.ttft_s_per_token * self.prompt_tokens
        with np.errstate(invalid="ignore"):
            return np.asarray(self.ok & (self.ttft_s <= ttft_slo_s) & (self.itl_s <= slo.itl_s))

    def attainment(self, slo: SLORule) -> float:
        """Share of requests that met both objectives."""
        return float(self.met(slo).mean()) if len(self) else 1.0

    def fair_attainment(self, slo: SLORule) -> float:
        """The lowest share among the quartiles of prompt length."""
        if not len(self):
            return 1.0
        met = self.met(slo)[np.argsort(self.prompt_tokens, kind="stable")]
        return float(min(part.mean() for part in np.array_split(met, 4) if len(part)))
