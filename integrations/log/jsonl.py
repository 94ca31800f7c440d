"""The request log as files: append-only JSONL, one joined record per request, rotated by size."""

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from kvferry.integrations.log.codec import write_record
from kvferry.integrations.log.record import DecisionRecord


class JsonlWriter:
    """Appends to `path`; every call reaches the kernel before it returns (`fsync`: the disk).

    Above `max_bytes` the file becomes `STEM-<UTC time>.jsonl` beside it, of which the newest `keep`
    stay. Several processes may append to one path, and another may move it away. Raises OSError.
    """

    def __init__(self, path: Path, *, max_bytes: int = 64 << 20, keep: int = 32, fsync: bool = False) -> None:
        self.path = path
        self._max_bytes, self._keep, self._fsync = max_bytes, keep, fsync
        self._handle: int | None = None
        self._headed: set[str] = set()

    def write(self, *records: DecisionRecord) -> None:
        self.write_lines(write_record(record) for record in records)

    def write_lines(self, lines: Iterable[bytes], heads: Mapping[str, bytes] | None = None) -> None:
        """Each line without its newline; all in one write. `heads` (id -> line) are what these lines refer
        to: written before them, once in every file."""
        body = b"".join(line + b"\n" for line in lines)
        if not body:
            return
        heads = heads or {}
        handle = self._open()
        data = self._head(heads) + body
        start = os.fstat(handle).st_size
        if start and start + len(data) > self._max_bytes:
            self._rotate()
            handle, start = self._open(), 0
            data = self._head(heads) + body
        written = os.write(handle, data)
        if written != len(data):
            # take back what was written, so that all of it can be tried again; where another process has
            # gone on meanwhile, opening again ends the half line
            if os.fstat(handle).st_size == start + written:
                os.ftruncate(handle, start)
            self.close()
            raise OSError(f"no space left for {self.path}")
        self._headed.update(heads)
        if self._fsync:
            os.fsync(handle)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        self._headed.clear()

    def _head(self, heads: Mapping[str, bytes]) -> bytes:
        return b"".join(line + b"\n" for name, line in heads.items() if name not in self._headed)

    def _open(self) -> int:
        if self._handle is not None and not self._moved(self._handle):
            return self._handle
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        size = os.fstat(self._handle).st_size
        if size and os.pread(self._handle, 1, size - 1) != b"\n":
            os.write(self._handle, b"\n")  # a crash cut the last line short
        return self._handle

    def _moved(self, handle: int) -> bool:
        try:
            return os.stat(self.path).st_ino != os.fstat(handle).st_ino
        except FileNotFoundError:
            return True

    def _rotate(self) -> None:
        if self._handle is not None and not self._moved(self._handle):
            stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + f"{time.time_ns() % 10**9:09d}"
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                self.path.rename(self.path.with_name(f"{self.path.stem}-{stamp}{self.path.suffix}"))
        self.close()
        old = sorted(self.path.parent.glob(f"{self.path.stem}-*{self.path.suffix}"))
        for path in old[: -self._keep] if self._keep else old:
            path.unlink(missing_ok=True)
