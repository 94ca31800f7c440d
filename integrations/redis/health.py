"""Says once that the store is lost, and once that it is back, whoever notices."""

import logging
import time
from collections.abc import Callable

from kvferry.integrations.redis.connection import why

_log = logging.getLogger("kvferry.redis")


class Health:
    """Shared by everything that talks to one store; each names itself, and none speaks for another."""

    def __init__(self, label: str, pending: Callable[[], int] = lambda: 0) -> None:
        self.label = label
        self.pending = pending
        self._failing: set[str] = set()
        self._since = 0.0

    @property
    def up(self) -> bool:
        return not self._failing

    def failure(self, source: str, error: BaseException) -> None:
        if not self._failing:
            self._since = time.monotonic()
            _log.warning(
                "store %s lost (%s): routing goes on, the log spools to disk", self.label, why(error)
            )
        self._failing.add(source)

    def success(self, source: str) -> None:
        if source in self._failing:
            self._failing.discard(source)
            if not self._failing:
                away_s = time.monotonic() - self._since
                _log.warning(
                    "store %s is back after %.1f s, %d log entries to deliver",
                    self.label,
                    away_s,
                    self.pending(),
                )
