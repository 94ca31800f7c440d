"""Rows of a CSV file, some columns of them, each made into a value."""

import csv
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kvferry.models.workload.trace_file import TraceError, TraceFile

Columns = Mapping[str, Callable[[str], Any]]

MOST = 10**9


def read_rows(trace: TraceFile, columns: Columns) -> Iterator[tuple[int, list[Any]]]:
    """(line number, the named columns in their order). A converter's ValueError says what is wrong.

    Raises TraceError when the file is empty or lacks a column.
    """
    lines = trace.lines()
    header = next((split_row(line) for _, line in lines), None)
    if header is None:
        raise TraceError(f"{trace.path} is empty")
    places = []
    for name, convert in columns.items():
        if name not in header:
            raise TraceError(f"{trace.path}, line 1: no column {name!r}: there are {', '.join(header)}")
        places.append((name, header.index(name), convert))
    for number, line in lines:
        cells = split_row(line)
        if len(cells) != len(header):
            trace.refuse(number, "", None, f"{len(cells)} columns where the header has {len(header)}")
            continue
        row: list[Any] = []
        for name, place, convert in places:
            try:
                row.append(convert(cells[place]))
            except ValueError as error:
                trace.refuse(number, name, cells[place], str(error))
                break
        else:
            yield number, row


def split_row(line: bytes) -> list[str]:
    """Cells of one line, none where it is no CSV; without the mark that some editors put first."""
    try:
        return next(csv.reader([line.decode("utf-8-sig", errors="replace")]), [])
    except csv.Error:  # a line end within the line, or a cell of over 128 KiB
        return []


def count(text: str) -> int:
    """A whole number from 1 to MOST."""
    try:
        value = int(text)
    except ValueError:
        raise ValueError("is no whole number") from None
    if not 1 <= value <= MOST:
        raise ValueError(f"must be from 1 to {MOST}")
    return value


def amount(text: str) -> float:
    """A finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("is no number") from None
    if not 0 <= value < float("inf"):
        raise ValueError("must be finite and at least 0")
    return value
