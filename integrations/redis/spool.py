"""Where stream entries wait on disk while the store is away: append-only segments, delivered in order.

A segment is deleted once all of it is delivered; after a crash a half-delivered one is delivered again
from its start, which readers of the streams recognise by the ids.
"""

import fcntl
import hashlib
import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvferry.integrations.redis.streams import Entry, Kind


class _Line(msgspec.Struct):
    kind: Kind
    id: str
    data: msgspec.Raw


_lines = msgspec.json.Decoder(_Line)


class Spool:
    """The spool of one router for one store, under `root`. Raises OSError. Not for several threads at once.

    Routers on one host may share `root`: each locks a slot of its own, and takes over what it finds in
    slots of the same `name` whose router is gone. `max_bytes` bounds the disk used by this one.
    """

    def __init__(
        self, root: Path, name: str, *, max_bytes: int = 256 << 20, segment_bytes: int = 8 << 20
    ) -> None:
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        prefix = f"{hashlib.sha256(name.encode()).hexdigest()[:8]}-"
        self._dir, self._lock = _own_slot(root, prefix)
        _adopt(root, prefix, self._dir)
        self._segments = sorted(self._dir.glob("*.jsonl"))
        self.size_bytes = sum(path.stat().st_size for path in self._segments)
        self.pending = sum(_count_lines(path) for path in self._segments)
        self._next = int(self._segments[-1].stem) + 1 if self._segments else 0
        self._tail: FileIO | None = None
        self._head: BinaryIO | None = None
        self._read: list[Entry] = []

    def append(self, entries: Sequence[Entry]) -> int:
        """Write `entries` at the end; returns how many did not fit and are lost."""
        lines = [
            msgspec.json.encode(_Line(entry.kind, entry.id, msgspec.Raw(entry.data))) + b"\n"
            for entry in entries
        ]
        room, fit = self._max_bytes - self.size_bytes, 0
        while fit < len(lines) and (room := room - len(lines[fit])) >= 0:
            fit += 1
        if fit:
            self._write(b"".join(lines[:fit]))
            self.pending += fit
        return len(lines) - fit

    def peek(self, n: int) -> list[Entry]:
        """The oldest entries, `n` at most; they stay until `consume`."""
        while len(self._read) < n and self._segments:
            if self._head is None:
                self._head = self._segments[0].open("rb")
            line = self._head.readline()
            if not line:
                if self._read:
                    break  # deliver these first: a segment goes only when all of it is delivered
                self._drop_head()
            elif (entry := _decode(line)) is not None:
                self._read.append(entry)
            else:
                self.pending = max(0, self.pending - 1)  # cut short by a crash
        return self._read[:n]

    def consume(self, n: int) -> None:
        """Forget the `n` oldest entries: they are delivered."""
        del self._read[:n]
        self.pending = max(0, self.pending - n)
        if not self.pending and not self._read:
            while self._segments:
                self._drop_head()

    def close(self) -> None:
        """What is pending stays on disk for the next router."""
        for handle in (self._tail, self._head):
            if handle is not None:
                handle.close()
        os.close(self._lock)

    def _write(self, data: bytes) -> None:
        if self._tail is None or self._tail.tell() >= self._segment_bytes:
            self._open_tail()
        assert self._tail is not None
        start = self._tail.tell()
        try:
            if self._tail.write(data) != len(data):
                raise OSError("no space left for the spool")
        except OSError:
            self._tail.truncate(start)  # half a line would swallow the next one
            raise
        self.size_bytes += len(data)

    def _open_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
        path = self._dir / f"{self._next:08d}.jsonl"
        self._next += 1
        self._tail = path.open("ab", buffering=0)
        self._segments.append(path)

    def _drop_head(self) -> None:
        if self._head is not None:
            self._head.close()
            self._head = None
        path = self._segments.pop(0)
        if not self._segments and self._tail is not None:
            self._tail.close()
            self._tail = None
        self.size_bytes = max(0, self.size_bytes - path.stat().st_size)
        path.unlink()


def _own_slot(root: Path, prefix: str) -> tuple[Path, int]:
    for number in range(10_000):
        path = root / f"{prefix}{number}"
        path.mkdir(exist_ok=True, mode=0o700)
        if (lock := _try_lock(path)) is not None:
            return path, lock
    raise OSError(f"all spool slots under {root} are taken")


def _try_lock(path: Path) -> int | None:
    handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _adopt(root: Path, prefix: str, own: Path) -> None:
    number = max((int(path.stem) for path in own.glob("*.jsonl")), default=-1) + 1
    for slot in sorted(root.glob(f"{prefix}*")):
        if slot == own or (lock := _try_lock(slot)) is None:
            continue
        for segment in sorted(slot.glob("*.jsonl")):
            segment.rename(own / f"{number:08d}.jsonl")
            number += 1
        os.close(lock)


def _count_lines(path: Path) -> int:
    with path.open("rb") as handle:
        return sum(1 for _ in handle)


def _decode(line: bytes) -> Entry | None:
    try:
        found = _lines.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return Entry(found.kind, found.id, bytes(found.data))
