"""Chunks from JSON lines, packed or not, one line in memory at a time."""

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from kvferry.integrations.learning.chunk import Chunk, chunks_of
from kvferry.integrations.learning.needed import Needed
from kvferry.integrations.learning.tally import Tally
from kvferry.integrations.log.cluster_table import table_id
from kvferry.integrations.log.codec import RecordError, read_record
from kvferry.integrations.log.source import SourceError

_decode = msgspec.json.Decoder(Needed).decode


def read_lines(path: Path, tally: Tally, at: Callable[[int], None]) -> Iterator[Chunk]:
    """`at` is told how far in the file, in bytes. Raises SourceError when it cannot be opened."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from None
    with raw:
        lines = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.name.endswith(".gz") else raw
        for chunk in chunks_of(records_of(lines, str(path), tally)):
            yield chunk
            at(raw.tell())


def records_of(lines: Iterable[bytes], where: str, tally: Tally) -> Iterator[Needed]:
    """Lines that are none are counted, and so is an end in the middle of a packed file."""
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            try:
                yield _decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if table_id(line) is None:  # those stand among the records
                    tally.reject(f"{where}:{number}", _why(line, error))
    except (EOFError, OSError, zlib.error) as error:
        tally.reject(f"{where}:{number + 1}", f"the file ends here: {error}")


def _why(line: bytes, error: Exception) -> str:
    try:
        read_record(line)
    except RecordError as told:
        return str(told)
    return str(error)
