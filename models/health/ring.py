"""The newest rows of numbers, summed up without a loop over them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvferry.models.health.snapshot import InputHealth

MOST_NAMES = 64
MOST = 1e15
# In place of a number: nobody asked for it, and it did not come. (What comes and is no number came not.)
NOT_ASKED, NOT_ARRIVED = math.inf, math.nan


@dataclass(slots=True)
class Ring:
    """`rows` of them are kept; names are those met, up to MOST_NAMES."""

    rows: int
    names: dict[str, int] = field(default_factory=dict)
    _count: int = 0
    _table: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self._table = np.full((self.rows, MOST_NAMES), NOT_ASKED)

    def add(self, values: Mapping[str, float | None]) -> None:
        """One more row: None where a number was asked for, and did not come."""
        row = self._table[self._count % self.rows]
        self._count += 1
        row[:] = NOT_ASKED
        for name, value in values.items():
            place = self.names.get(name)
            if place is None:
                if len(self.names) >= MOST_NAMES:
                    continue
                place = self.names[name] = len(self.names)
            row[place] = value if value is not None and abs(value) < MOST else NOT_ARRIVED

    def add_row(self, values: Iterable[float] | None) -> None:
        """One more row, of all names in their order; None: none came."""
        row = self._table[self._count % self.rows]
        self._count += 1
        row[: len(self.names)] = NOT_ARRIVED
        if values is not None:
            given = np.fromiter(values, np.float64)
            np.copyto(row[: len(self.names)], given, where=np.abs(given) < MOST)

    def health(self) -> dict[str, InputHealth]:
        """Of every name that some kept row was asked for."""
        table = self._table[: min(self._count, self.rows), : len(self.names)]
        asked = table != NOT_ASKED
        arrived = np.isfinite(table)
        low, high = np.where(arrived, table, np.inf), np.where(arrived, table, -np.inf)
        sums = zip(
            self.names,
            asked.sum(axis=0).tolist(),
            arrived.sum(axis=0).tolist(),
            low.min(axis=0, initial=np.inf).tolist(),
            high.max(axis=0, initial=-np.inf).tolist(),
            np.where(arrived, table, 0.0).sum(axis=0).tolist(),
            strict=True,
        )
        return {
            name: InputHealth(asks, came, *ends) if came else InputHealth(asks)
            for name, asks, came, *ends in sums
            if asks
        }
