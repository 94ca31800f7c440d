"""What one attempt sent to its workers, and the records of it that have come back."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvferry.integrations.log.record import Missing
from kvferry.integrations.sglang.plugin.wire import RID_CHARS, RequestRecord

Key = int | tuple[str, str]  # a bootstrap room, or (worker, rid)


@dataclass(frozen=True, slots=True)
class Sent:
    """One attempt. `prefill` and `decode` are equal when colocated; `rooms` (split) or `rids` (colocated),
    one per sequence. Both are empty when only the worker knows its sequences' ids."""

    prefill: str
    decode: str
    rooms: tuple[int, ...] = ()
    rids: tuple[str, ...] = ()

    @property
    def split(self) -> bool:
        return self.prefill != self.decode

    @property
    def keys(self) -> tuple[Key, ...]:
        return self.rooms if self.split else tuple((self.prefill, rid[:RID_CHARS]) for rid in self.rids)

    def workers(self) -> dict[str, str]:
        """Worker by part: `prefill` and `decode`, or `alone`."""
        return {"prefill": self.prefill, "decode": self.decode} if self.split else {"alone": self.prefill}


@dataclass(slots=True, eq=False)
class Trip:
    """`parts`: those whose workers are expected to tell; `missing`: the other workers, and why they are not.
    `begun_s`: on the router's monotonic clock. `records`: by key and part."""

    sent: Sent
    parts: frozenset[str]
    missing: Mapping[str, Missing]
    begun_s: float
    records: dict[tuple[Key, str], RequestRecord] = field(default_factory=dict)

    def take(self, key: Key, record: RequestRecord) -> bool:
        """Whether it is wanted, and new: records may come twice."""
        place = (key, part_of(record))
        if place[1] not in self.parts or place in self.records:
            return False
        self.records[place] = record
        return True

    @property
    def complete(self) -> bool:
        return len(self.records) == len(self.sent.keys) * len(self.parts)

    def of(self, part: str) -> dict[Key, RequestRecord]:
        """The records of one part by key, if those of all sequences have come; else none."""
        found = {key: record for (key, of), record in self.records.items() if of == part}
        return found if found and len(found) == len(self.sent.keys) else {}

    def silent(self) -> Iterator[str]:
        """Workers that were expected to tell of every sequence, and did not."""
        workers = self.sent.workers()
        return (workers[part] for part in sorted(self.parts) if not self.of(part))


def part_of(record: RequestRecord) -> str:
    return record.role if record.role in ("prefill", "decode") else "alone"
