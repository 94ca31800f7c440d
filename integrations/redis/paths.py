"""Measured paths in the store: a probe leaves them, routers read them beside deciding."""

import logging
from collections.abc import Callable, Iterable

from redis.exceptions import ResponseError

from kvferry.integrations.redis.background import Background
from kvferry.integrations.redis.connection import STORE_FAILURES, Store, why
from kvferry.integrations.redis.health import Health
from kvferry.integrations.redis.path_record import MOST_BYTES, decode, encode
from kvferry.models.paths.probed import Probed

_log = logging.getLogger("kvferry.paths")
_SEP = "\x1f"

MOST_PATHS = 4096
MOST_COMPLAINTS = 256
# Paths are read again after so long even where nobody says that they changed: a store may have lost them.
AGAIN_S = 60.0
REFUSED_S = 5.0


class PathBoard:
    """The hash of paths. Raises what redis-py raises; `complain(field, what)` is told of what is passed over:
    too long, no path, or not of the pair that it is filed under."""

    def __init__(self, store: Store, complain: Callable[[str, str], None]) -> None:
        self._store, self._complain = store, complain

    async def revision(self) -> bytes:
        """Another one after every write."""
        return bytes(await self._store.client.get(self._store.keys.paths_revision) or b"")

    async def read(self) -> list[Probed]:
        """All paths that are sound. Nothing longer than MOST_BYTES is read, and no more than MOST_PATHS."""
        client, key = self._store.client, self._store.keys.paths
        count = await client.hlen(key)
        if count > MOST_PATHS:
            self._complain("", f"{key} has {count} fields, more than {MOST_PATHS}: none is read")
            return []
        fields = list(await client.hkeys(key))
        if not fields:
            return []
        async with client.pipeline(transaction=False) as pipe:
            for field in fields:
                pipe.hstrlen(key, field)
            lengths = await pipe.execute()
        fit = [field for field, length in zip(fields, lengths, strict=True) if 0 < length <= MOST_BYTES]
        for field, length in zip(fields, lengths, strict=True):
            if length > MOST_BYTES:
                self._complain(_shown(field), f"{length} bytes, more than {MOST_BYTES}")
        values = await client.hmget(key, fit) if fit else []
        return [
            path
            for field, value in zip(fit, values, strict=True)
            if value and (path := self._path(field, value)) is not None
        ]

    async def write(self, found: Iterable[Probed]) -> None:
        """Each in place of what was known of its pair and transport."""
        keys = self._store.keys
        fields = {_SEP.join(one.key): encode(one) for one in found}
        if not fields:
            return
        async with self._store.client.pipeline(transaction=False) as pipe:
            pipe.hset(keys.paths, mapping=fields)
            pipe.incr(keys.paths_revision)
            await pipe.execute()

    def _path(self, field: bytes, value: bytes) -> Probed | None:
        try:
            path = decode(value)
            if _SEP.join(path.key).encode() != field:
                raise ValueError("it is of another path than its field says")
        except ValueError as error:
            self._complain(_shown(field), str(error))
            return None
        return path


class PathFollower(Background):
    """Tells `take` of the paths in the store, at first and whenever they change; while the store is away, or
    refuses, what was told last holds."""

    def __init__(
        self,
        store: Store,
        take: Callable[[list[Probed]], None],
        *,
        health: Health,
        interval_s: float = 2.0,
    ) -> None:
        super().__init__("paths")
        self._board = PathBoard(store, self._complain)
        self._take, self._health, self._interval_s = take, health, interval_s
        self._revision: bytes | None = None
        self._rounds_left = 0
        self._told: list[Probed] = []
        self._complained: set[tuple[str, str]] = set()
        self._refused = False

    async def close(self) -> None:
        await self._end(timeout_s=1.0)

    async def refresh(self) -> None:
        """Read what changed, now. Raises what redis-py raises."""
        revision = await self._board.revision()
        if revision == self._revision and self._rounds_left > 0:
            self._rounds_left -= 1
            return
        found = await self._board.read()
        self._revision, self._rounds_left = revision, round(AGAIN_S / self._interval_s)
        if found != self._told:
            self._told = found
            self._take(found)

    async def _step(self) -> float | None:
        try:
            await self.refresh()
        except ResponseError as error:  # the store is there and refuses: an ACL, or a key of another type
            if not self._refused:
                self._refused = True
                _log.error("probed paths cannot be read: %s", why(error))
            return REFUSED_S
        except STORE_FAILURES as error:
            self._health.failure("paths", error)
            return self._interval_s
        self._refused = False
        self._health.success("paths")
        return self._interval_s

    def _complain(self, field: str, what: str) -> None:
        if (field, what) not in self._complained and len(self._complained) < MOST_COMPLAINTS:
            self._complained.add((field, what))
            _log.warning("passing over the probed path %r: %s", field, what)


def _shown(field: bytes) -> str:
    return field[:200].decode(errors="replace").replace(_SEP, " ")
