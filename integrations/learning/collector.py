"""Rows as they come, thinned when they become too many, each request once."""

import dataclasses
from typing import Any

import numpy as np

from kvferry.integrations.learning.tally import Tally
from kvferry.models.training.rows import Rows

# Of about 220 bytes each.
MOST_ROWS = 6_000_000
_SPREAD = np.uint64(0xD6E8FEB86659FD93)


class Collector:
    """Holds at most `most` rows. Beyond, every other request is left out, then three of four, and so on.

    Which ones depends on their ids and times alone: not on the order in which they come, nor on how they are
    cut."""

    def __init__(self, tally: Tally, most: int = MOST_ROWS, *, predictions: bool = True) -> None:
        self._tally = tally
        self._most = most
        self._predictions = predictions
        self._parts: list[Rows] = []
        self._held = 0
        self._halvings = 0

    def add(self, rows: Rows) -> None:
        if not self._predictions:
            rows = dataclasses.replace(rows, predicted_s=None, corrected=None, catalogue_s=None)
        self._keep(self._thinned(rows))
        while self._held > self._most:
            self._halvings += 1
            parts, self._parts, self._held = self._parts, [], 0
            for part in parts:
                self._keep(self._thinned(part))

    def rows(self) -> Rows:
        """All rows, oldest first; the collector is empty after that."""
        if not self._parts:
            return Rows.empty()
        parts, self._parts = self._parts, []
        time_s = np.concatenate([part.time_s for part in parts])
        key = np.concatenate([part.key for part in parts])
        order = np.lexsort((key, time_s))
        time_s, key = time_s[order], key[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (key[1:] != key[:-1]) | (time_s[1:] != time_s[:-1])
        self._tally.drop("duplicate", len(order) - int(first.sum()))
        order = order[first]
        names = [f.name for f in dataclasses.fields(Rows) if getattr(parts[0], f.name) is not None]
        names.remove("feature_set")
        columns = {name: [getattr(part, name) for part in parts] for name in names}
        del parts
        # one column after the other, so that never all of them are there twice
        done: dict[str, Any] = {name: np.concatenate(columns.pop(name))[order] for name in names}
        return Rows(**done)

    def _keep(self, rows: Rows) -> None:
        self._parts.append(rows)
        self._held += len(rows)

    def _thinned(self, rows: Rows) -> Rows:
        if not self._halvings:
            return rows
        stays = (rows.key * _SPREAD) >> np.uint64(64 - self._halvings) == 0
        self._tally.drop("thinned", len(rows) - int(stays.sum()))
        return rows.take(stays)
