"""Finished cells on disk, so that a run that was killed goes on where it stopped."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.simulate.engine import Labelled
from kvferry.models.simulator.cell import Result

FILE = "cells.jsonl"


class Results:
    """`done`: results by cell key. Each is one line of OUT/cells.jsonl, written before the next begins."""

    def __init__(self, file: int, done: dict[str, Result]) -> None:
        self._file = file
        self.done = done

    def add(self, cell: Labelled, result: Result) -> None:
        line = json.dumps({"key": cell.key, "labels": dict(cell.labels), "result": result}, allow_nan=False)
        whole = line.encode() + b"\n"
        try:
            written = os.write(self._file, whole)
        except OSError as error:
            raise CommandError(f"cannot write to {FILE}: {error.strerror or error}") from None
        if written < len(whole):
            raise CommandError(f"cannot write to {FILE}: no space left")
        self.done[cell.key] = result


@contextmanager
def opened(folder: Path) -> Iterator[Results]:
    """The results in `folder`, which is made. CommandError when it cannot be written or is in use."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise CommandError(f"cannot write to {folder}: {error.strerror or error}") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"another run is writing to {folder}") from None
        yield Results(file, _read(file, folder / FILE))
    finally:
        os.close(file)


def _read(file: int, path: Path) -> dict[str, Result]:
    """Whole lines; what a kill left of the last one is cut off."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        os.ftruncate(file, len(whole))
    done: dict[str, Result] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            entry: dict[str, Any] = json.loads(line)
            done[entry["key"]] = entry["result"]
        except (KeyError, TypeError, ValueError):
            raise CommandError(f"{path}, line {number}: not a result of this command") from None
    return done
