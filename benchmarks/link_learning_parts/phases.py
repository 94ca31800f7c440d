"""What was done to a wire, and when."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

FILE = "phases.json"


@dataclass(frozen=True, slots=True)
class Phases:
    """Hosts at the far ends of wires of `mbit_per_s`; the first was slow from `slow_s` to `again_s` (Unix
    seconds), and everything was over at `end_s`. `answers`: how many requests ended how."""

    hosts: tuple[str, ...]
    mbit_per_s: tuple[float, ...]
    slow_s: float
    again_s: float
    end_s: float
    answers: dict[str, int]

    @classmethod
    def read(cls, folder: Path) -> "Phases":
        """Raises OSError, or ValueError where it is not one."""
        return msgspec.json.decode((folder / FILE).read_bytes(), type=cls)

    def write(self, folder: Path) -> None:
        (folder / FILE).write_bytes(msgspec.json.encode(self))
