"""What a command says when a log, or the store that holds it, cannot be read."""

import contextlib
from collections.abc import Iterator

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.log.source import SourceError
from kvferry.integrations.redis.url import StoreError


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """In one line, with the exit code that its kind has."""
    try:
        yield
    except SourceError as error:
        raise (UsageError if error.usage else CommandError)(str(error)) from None
    except StoreError as error:
        raise CommandError(str(error)) from None
