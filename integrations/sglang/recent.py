"""The last decisions, for `explain` and for those who watch."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from kvferry.integrations.log.record import DecisionRecord

KEPT = 2_000
WATCHER_QUEUE = 256


@dataclass(slots=True, eq=False)
class Recent:
    """Keeps the last KEPT records by request id; `watch` hands out finished ones as they come."""

    _records: OrderedDict[str, DecisionRecord] = field(default_factory=OrderedDict)
    _watchers: set[asyncio.Queue[DecisionRecord | None]] = field(default_factory=set)

    def add(self, record: DecisionRecord, *, final: bool = True) -> None:
        """`final`: its outcome, if it has one, will not change any more."""
        self._records[record.id] = record
        while len(self._records) > KEPT:
            self._records.popitem(last=False)
        if record.outcome is None or not final:
            return
        for queue in self._watchers:
            if not queue.full():  # a slow watcher misses records; the log does not
                queue.put_nowait(record)

    def get(self, request_id: str) -> DecisionRecord | None:
        """By id, or by a beginning that only one record has."""
        if request_id in self._records:
            return self._records[request_id]
        found = [record for key, record in self._records.items() if key.startswith(request_id)]
        return found[0] if request_id and len(found) == 1 else None

    def watch(self) -> "asyncio.Queue[DecisionRecord | None]":
        """A queue of finished records; None at the end of all."""
        queue: asyncio.Queue[DecisionRecord | None] = asyncio.Queue(WATCHER_QUEUE)
        self._watchers.add(queue)
        return queue

    def unwatch(self, queue: "asyncio.Queue[DecisionRecord | None]") -> None:
        self._watchers.discard(queue)

    def close(self) -> None:
        """No more will come."""
        for queue in self._watchers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)
