"""A trace on disk: its lines, and what is said of those that cannot be used."""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GZIP_MAGIC = b"\x1f\x8b"
SHOWN = 60  # characters of a bad value that a message repeats


class TraceError(ValueError):
    """A trace cannot be used. The message names the file and, of a bad line, number, field and value."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """`dropped`: takes one message per line left out; None: a bad line raises TraceError."""

    path: Path
    dropped: list[str] | None = None

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(line number from 1, line) of all lines that are not blank, unpacked where packed by gzip."""
        try:
            with self.path.open("rb") as raw:
                packed = raw.read(2) == GZIP_MAGIC
                raw.seek(0)
                for number, line in enumerate(gzip.GzipFile(fileobj=raw) if packed else raw, start=1):
                    if line := line.strip():
                        yield number, line
        except (OSError, EOFError, zlib.error) as error:  # a cut gzip file ends in EOFError
            reason = getattr(error, "strerror", None) or error
            raise TraceError(f"cannot read {self.path}: {reason}") from None

    def refuse(self, line: int, field: str, value: object, why: str) -> None:
        """Leave line out where that is allowed, else raise TraceError."""
        shown = repr(value)
        shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "..."
        message = f"{self.path}, line {line}: {f'{field} = {shown}: ' if field else ''}{why}"
        if self.dropped is None:
            raise TraceError(message)
        self.dropped.append(message)
