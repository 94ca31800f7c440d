"""What is written down of every request while a simulation runs."""

import math
from typing import Any

import numpy as np

from kvferry.models.simulator.job import Job
from kvferry.models.simulator.run import Run
from kvferry.models.simulator.trip import Trip
from kvferry.models.workload.base import Workload

_TIMES = ("ttft_s", "itl_s", "e2e_s", "queue_s", "transfer_s")
_PREDICTED = ("predicted_ttft_s", "predicted_itl_s", "predicted_transfer_s")
_COUNTS = ("pre", "dec", "rescued", "cached_tokens")


class Ledger:
    """Columns of a Run, filled in row by row."""

    def __init__(self, count: int) -> None:
        self._columns: dict[str, list[float]] = {name: [math.nan] * count for name in (*_TIMES, *_PREDICTED)}
        self._columns["moved_bytes"] = [0.0] * count
        self._counts: dict[str, list[int]] = {name: [0] * count for name in _COUNTS}
        self._counts["pre"], self._counts["dec"] = [-1] * count, [-1] * count
        self._ok = [False] * count
        self._split = [False] * count

    def decided(self, trip: Trip) -> None:
        """A plan was chosen (again); predictions are those of the first."""
        assert trip.decision is not None
        row, costs = trip.row, trip.decision.costs
        self._counts["pre"][row], self._counts["dec"][row] = trip.pre, trip.dec
        self._counts["rescued"][row] = trip.tries
        self._split[row] = trip.split
        if not trip.tries:
            self._columns["predicted_ttft_s"][row] = costs.ttft_s.p50
            self._columns["predicted_itl_s"][row] = costs.itl_s.p50
            if trip.split:
                self._columns["predicted_transfer_s"][row] = costs.transfer_s.p50

    def first_token(self, row: int, ttft_s: float) -> None:
        self._columns["ttft_s"][row] = ttft_s

    def answered(self, row: int) -> bool:
        """Whether its first token is out."""
        return self._columns["ttft_s"][row] == self._columns["ttft_s"][row]

    def ended(self, trip: Trip, itl_s: float, source: Job) -> None:
        """The last token is out; `source` is the job that prefilled."""
        row, columns = trip.row, self._columns
        assert trip.job is not None
        self._ok[row] = True
        columns["itl_s"][row] = itl_s
        columns["e2e_s"][row] = trip.job.end_s - trip.arrival_s
        columns["queue_s"][row] = source.prefill_start_s - trip.arrival_s
        self._counts["cached_tokens"][row] = source.cached_tokens
        if trip.move is not None:
            columns["transfer_s"][row] = trip.arrived_s - trip.computed_s
            columns["moved_bytes"][row] = trip.move.sent_bytes

    def run(
        self,
        *,
        policy: str,
        seed: int,
        workers: tuple[str, ...],
        workload: Workload,
        retractions: int,
        engine_steps: int,
        events: int,
        end_s: float,
        aborted: bool,
    ) -> Run:
        return Run(
            policy=policy,
            seed=seed,
            workers=workers,
            arrival_s=workload.arrival_s,
            prompt_tokens=workload.prompt_tokens,
            output_tokens=workload.output_tokens,
            ok=np.array(self._ok, dtype=np.bool_),
            split=np.array(self._split, dtype=np.bool_),
            retractions=retractions,
            engine_steps=engine_steps,
            events=events,
            end_s=end_s,
            aborted=aborted,
            **self._counted(),
            **{name: np.array(values) for name, values in self._columns.items()},
        )

    def _counted(self) -> dict[str, Any]:
        return {name: np.array(values, dtype=np.int64) for name, values in self._counts.items()}
