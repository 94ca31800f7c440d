"""A log into one file."""

import contextlib
import gzip
import os
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, cast

from kvferry.integrations.log.codec import write_record
from kvferry.integrations.log.record import DecisionRecord
from kvferry.integrations.log.source import READABLE, SUFFIXES, SourceError


def export(records: Iterable[DecisionRecord], path: Path, clusters: Mapping[str, bytes] | None = None) -> int:
    """Write to a .parquet, .jsonl or .jsonl.gz; returns how many records. Raises SourceError.

    `clusters`: id -> line of the cluster tables that the records refer to; may grow while they are read.

    The file appears when it is complete, and replaces an older one only then; with no record at all
    none is written.
    """
    if not path.name.endswith(SUFFIXES):
        raise SourceError(f"cannot write {path}: expected {READABLE}", usage=True)
    clusters = {} if clusters is None else clusters
    remaining = iter(records)
    first = list(islice(remaining, 1))
    if not first:
        return 0
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if path.name.endswith(".parquet"):
            from kvferry.integrations.log.parquet import write_parquet

            count = write_parquet(chain(first, remaining), part, clusters)
        else:
            packed = path.name.endswith(".gz")
            count = _write_lines(chain(first, remaining), part, clusters, compress=packed)
        part.replace(path)
    except OSError as error:
        raise SourceError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):  # gone already, or never there: the write itself has failed
            part.unlink()
    return count


def _write_lines(
    records: Iterable[DecisionRecord], path: Path, clusters: Mapping[str, bytes], *, compress: bool
) -> int:
    count = 0
    headed: set[str] = set()
    with path.open("wb") as raw, _packed(raw) if compress else raw as out:
        for record in records:
            table = record.picture.cluster if record.picture is not None else ""
            if table in clusters and table not in headed:
                headed.add(table)
                out.write(clusters[table] + b"\n")
            out.write(write_record(record) + b"\n")
            count += 1
    return count


def _packed(raw: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0))
