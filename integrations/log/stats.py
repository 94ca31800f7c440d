"""What a log says in a handful of numbers."""

import statistics
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from kvferry.integrations.log.errors import covered, transfer_error, ttft_error
from kvferry.integrations.log.record import DecisionRecord


class Tally:
    """Counts of one group of records, kept in a few bytes per record."""

    def __init__(self) -> None:
        self.requests = 0
        self._split = self._rescued = self._failed = self._covered = self._coverable = 0
        self._reasons: Counter[str] = Counter()
        self._ttft, self._transfer = array("d"), array("d")

    def add(self, record: DecisionRecord) -> None:
        self.requests += 1
        self._split += record.chosen.mode == "split"
        self._reasons[record.reason] += 1
        if record.outcome is not None and record.mode != "shadow":
            self._rescued += bool(record.outcome.rescued_from) and record.outcome.status == "ok"
            self._failed += record.outcome.status == "failed"
        if (error := ttft_error(record)) is not None:
            self._ttft.append(abs(error))
        if (error := transfer_error(record)) is not None:
            self._transfer.append(abs(error))
        if (under := covered(record)) is not None:
            self._coverable += 1
            self._covered += under

    def summary(self) -> dict[str, Any]:
        """Errors are medians of |predicted - actual| / actual; what nothing is known about is None."""
        return {
            "requests": self.requests,
            "split_share": _share(self._split, self.requests),
            "reasons": dict(self._reasons.most_common()),
            "rescued": self._rescued,
            "failed": self._failed,
            "ttft_error_median": _median(self._ttft),
            "transfer_error_median": _median(self._transfer),
            "coverage_p90": _share(self._covered, self._coverable),
        }


def stats(records: Iterable[DecisionRecord]) -> dict[str, Any]:
    """The totals of what acted, and `by_policy` the same for each policy, shadows included."""
    total = Tally()
    by_policy: dict[str, Tally] = {}
    for record in records:
        if record.mode != "shadow":
            total.add(record)
        by_policy.setdefault(record.policy, Tally()).add(record)
    return {
        **total.summary(),
        "by_policy": {policy: tally.summary() for policy, tally in sorted(by_policy.items())},
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
