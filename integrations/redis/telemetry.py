"""Follows the stream of the workers' telemetry, beside the router: nothing waits for it."""

import logging
from collections.abc import Callable

from redis.exceptions import ResponseError

from kvferry.integrations.redis.background import Background
from kvferry.integrations.redis.connection import STORE_FAILURES, Store, why
from kvferry.integrations.redis.health import Health

_log = logging.getLogger("kvferry.redis")

BLOCK_S = 0.5  # under the store's answer timeout
PAGE = 500
RETRY_S = 0.25
RETRY_MAX_S = 5.0

Position = tuple[int, int]


class TelemetryFollower(Background):
    """Hands every entry's bytes to `take`, from the newest entry of the first contact on.

    While the store is away nothing comes. Afterwards it goes on where it stopped, so that what the workers
    kept meanwhile is read; a stream that has begun anew is read from its beginning. `take` must not raise.
    """

    def __init__(self, store: Store, health: Health, take: Callable[[bytes], None]) -> None:
        super().__init__("telemetry")
        self.read = 0
        self._store, self._health, self._take = store, health, take
        self._after: Position | None = None
        self._lost = False
        self._retry_s = RETRY_S
        self._complained = False

    async def close(self) -> None:
        await self._end(timeout_s=1.0)

    async def _step(self) -> float | None:
        try:
            if self._after is None or self._lost:
                self._after = self._resumed(await self._newest())
            await self._follow(self._after)
        except ResponseError as error:
            # the store is there and refuses: an ACL without this key, or a key of another type
            if not self._complained:
                self._complained = True
                _log.error("telemetry of workers cannot be read: %s", why(error))
            return RETRY_MAX_S
        except STORE_FAILURES as error:
            self._lost = True
            self._health.failure("telemetry", error)
            pause, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_MAX_S)
            return pause
        self._lost, self._retry_s = False, RETRY_S
        self._health.success("telemetry")
        return 0.0

    async def _newest(self) -> Position:
        rows = await self._store.client.xrevrange(self._store.keys.telemetry, count=1)
        return _position(rows[0][0]) if rows else (0, 0)

    def _resumed(self, newest: Position) -> Position:
        if self._after is None:
            return newest
        return self._after if newest >= self._after else (0, 0)

    async def _follow(self, after: Position) -> None:
        name = self._store.keys.telemetry
        given = {name: f"{after[0]}-{after[1]}"}
        answer = await self._store.client.xread(given, count=PAGE, block=int(BLOCK_S * 1000))
        for stream_id, fields in answer[0][1] if answer else ():
            self._after = _position(stream_id)
            self.read += 1
            self._take(fields.get(b"data", b""))


def _position(stream_id: bytes) -> Position:
    time_ms, _, number = stream_id.decode().partition("-")
    return int(time_ms), int(number)
