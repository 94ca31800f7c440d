"""Files and streams that results go to: checked before hours of work, and one line when they fail."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvferry.integrations.cli.errors import CommandError


def check_writable(file: Path) -> None:
    """CommandError when no such file can be written."""
    if file.is_dir():
        raise CommandError(f"cannot write {file}: it is a folder")
    if not file.parent.is_dir():
        raise CommandError(f"cannot write {file}: there is no folder {file.parent}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise CommandError(f"cannot write {file}: permission denied")


@contextmanager
def printing() -> Iterator[None]:
    """CommandError when what is printed here does not get out, as on a disk that is full. A reader that went
    away (| head) is no failure."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer would fail again, and aloud, when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return
        raise CommandError(f"cannot write to standard output: {error.strerror or error}") from None
