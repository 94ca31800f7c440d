"""What `--from` may name: a file, a directory, a store's URL, or nothing for this machine's own log."""

from pathlib import Path

from kvferry.integrations.state import log_path

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
READABLE = ".jsonl, .jsonl.gz, .parquet"


class SourceError(Exception):
    """The source cannot be read; one line. `usage`: the name itself makes no sense."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


def is_store(source: str | None) -> bool:
    """Whether `source` is a store's URL and not a path."""
    return source is not None and "://" in source


def files_of(source: str | None) -> list[Path]:
    """The files of a path, oldest first; None is the log of this machine with its rotated files.

    Raises SourceError when there is nothing to read.
    """
    if source is None:
        own = log_path()
        found = sorted(own.parent.glob(f"{own.stem}-*{own.suffix}")) + ([own] if own.is_file() else [])
        if not found:
            raise SourceError(
                f"no request log at {own}: 'kvferry serve' writes one; or name another with --from"
            )
        return found
    path = Path(source).expanduser()
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.is_file() and p.name.endswith(SUFFIXES))
        if not found:
            raise SourceError(f"no {READABLE} file in {path}")
        return found
    if not path.exists():
        raise SourceError(f"no such file or directory: {path}")
    if not path.name.endswith(SUFFIXES):
        raise SourceError(f"cannot read {path}: expected {READABLE}", usage=True)
    return [path]
