"""Rows from decision logs: files, folders and stores, several at once, larger than memory."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kvferry.integrations.learning.chunk import Chunk, chunks_of
from kvferry.integrations.learning.cleaner import cleaned
from kvferry.integrations.learning.collector import MOST_ROWS, Collector
from kvferry.integrations.learning.json_lines import read_lines
from kvferry.integrations.learning.parquet import read_columns
from kvferry.integrations.learning.tally import Tally
from kvferry.integrations.log.reader import ReadReport, read_log
from kvferry.integrations.log.source import files_of, is_store
from kvferry.models.training.rows import Rows

# Told of bytes read, of how many.
Progress = Callable[[int, int], None]


def read_rows(
    sources: Sequence[str],
    tally: Tally,
    *,
    predictions: bool = True,
    most: int = MOST_ROWS,
    progress: Progress = lambda done, total: None,
    namespace: str = "kvferry",
) -> Rows:
    """All that can be learned from, oldest first, each request once; `tally` says what was left out.

    `predictions`: also what the version that decided, and the catalogue, had said. Beyond `most` rows they
    are thinned evenly. Memory grows with the rows, not with the log. Raises SourceError.
    """
    rows = Collector(tally, most, predictions=predictions)
    for chunk in read_chunks(sources, tally, progress, namespace):
        rows.add(cleaned(chunk, tally))
    return rows.rows()


def read_chunks(
    sources: Sequence[str], tally: Tally, progress: Progress, namespace: str = "kvferry"
) -> Iterator[Chunk]:
    """All records, a few thousand at a time. A file that two sources name is read once; without any source it
    is this machine's log.

    Raises SourceError.
    """
    stores = [source for source in sources if is_store(source)]
    paths = [None] if not sources else [source for source in sources if not is_store(source)]
    files = list(dict.fromkeys(path.resolve() for source in paths for path in files_of(source)))
    sizes = [path.stat().st_size for path in files]
    total, done = sum(sizes), 0
    for path, size in zip(files, sizes, strict=True):

        def at(here: int, before: int = done) -> None:
            progress(before + here, total)

        yield from _read(path, tally, at)
        done += size
        progress(done, total)
    for url in stores:
        yield from _read_store(url, tally, namespace)


def _read(path: Path, tally: Tally, at: Callable[[int], None]) -> Iterator[Chunk]:
    read = read_columns if path.name.endswith(".parquet") else read_lines
    return read(path, tally, at)


def _read_store(url: str, tally: Tally, namespace: str) -> Iterator[Chunk]:
    """A store's streams are capped: their records fit into memory."""
    report = ReadReport()
    yield from chunks_of(read_log(url, report, namespace=namespace))
    tally.bad += report.bad
    tally.first_bad = tally.first_bad or report.first_bad
