"""What was read and what was not, by reason."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Tally:
    """Filled in while reading. `dropped`: records by reason; `doubted`: kept ones of which some measurement
    was not believed, by reason. `bad`: lines that are no record, the first one's place and why."""

    read: int = 0
    kept: int = 0
    bad: int = 0
    first_bad: str = ""
    dropped: Counter[str] = field(default_factory=Counter)
    doubted: Counter[str] = field(default_factory=Counter)

    def reject(self, where: str, reason: str) -> None:
        self.bad += 1
        self.first_bad = self.first_bad or f"{where}: {reason}"

    def drop(self, reason: str, rows: int) -> None:
        """Of such as had been kept."""
        self.dropped[reason] += rows
        self.kept -= rows

    def told(self) -> dict[str, Any]:
        """As `--json` prints it; reasons that no record had are left out."""
        return {
            "read": self.read,
            "kept": self.kept,
            "bad_lines": self.bad,
            "dropped": {reason: count for reason, count in self.dropped.items() if count},
            "doubted": {reason: count for reason, count in self.doubted.items() if count},
        }

    def left_out(self) -> str:
        """In a few words, the most frequent reasons first; "" where nothing was."""
        counts = self.dropped + Counter(bad_lines=self.bad)
        return ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common(4) if count)
