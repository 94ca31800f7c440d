"""Workers and their loads as routers publish them for each other; each entry expires unless refreshed."""

import logging
import time
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from kvferry.integrations.redis.connection import Store
from kvferry.policy.worker import Load, Worker

_log = logging.getLogger("kvferry.redis")
_T = TypeVar("_T")


class PublishedWorker(msgspec.Struct, frozen=True):
    """Enough to find a worker; its layout and speed are asked of the worker itself. `by`: a router."""

    id: str
    url: str
    role: str = ""
    model: str = ""
    bootstrap_host: str = ""
    bootstrap_port: int | None = None
    transports: tuple[str, ...] = ()
    host: str = ""
    by: str = ""

    @classmethod
    def of(cls, worker: Worker, by: str) -> "PublishedWorker":
        return cls(
            id=worker.id,
            url=worker.url,
            role=str(worker.role),
            model=worker.model,
            bootstrap_host=worker.bootstrap_host,
            bootstrap_port=worker.bootstrap_port,
            transports=worker.transports,
            host=worker.host,
            by=by,
        )


class PublishedLoad(msgspec.Struct, frozen=True):
    """A worker's counters, read by router `by` at `time` (Unix seconds); `load.time_s` is its own clock."""

    time: float
    load: Load
    by: str = ""


class Workers:
    """The shared list of workers. Raises what redis-py raises."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys

    async def publish(self, worker: PublishedWorker, ttl_s: float) -> None:
        """Add or replace a worker; it is gone after `ttl_s` unless published or refreshed again."""
        async with self._store.client.pipeline(transaction=False) as pipe:
            pipe.set(self._keys.worker(worker.id), msgspec.json.encode(worker), px=_ms(ttl_s))
            pipe.sadd(self._keys.workers, worker.id)
            await pipe.execute()

    async def refresh(self, worker_id: str, ttl_s: float) -> bool:
        """The heartbeat. False: the entry has expired and must be published again."""
        async with self._store.client.pipeline(transaction=False) as pipe:
            pipe.pexpire(self._keys.worker(worker_id), _ms(ttl_s))
            # heals a listing that a reader tidied away in the very moment of the publishing
            pipe.sadd(self._keys.workers, worker_id)
            return bool((await pipe.execute())[0])

    async def remove(self, worker_id: str) -> bool:
        """Take a worker and its load away at once. False: there was none."""
        async with self._store.client.pipeline(transaction=False) as pipe:
            pipe.delete(self._keys.worker(worker_id))
            pipe.delete(self._keys.load(worker_id))
            pipe.srem(self._keys.workers, worker_id)
            return bool((await pipe.execute())[0])

    async def list(self) -> tuple[PublishedWorker, ...]:
        """Live workers, by id."""
        ids = sorted(member.decode() for member in await self._store.client.smembers(self._keys.workers))
        if not ids:
            return ()
        values = await self._store.client.mget([self._keys.worker(worker_id) for worker_id in ids])
        gone = [worker_id for worker_id, value in zip(ids, values, strict=True) if value is None]
        if gone:
            await self._store.client.srem(self._keys.workers, *gone)
        return tuple(
            worker for value in values if value and (worker := _decode(value, PublishedWorker)) is not None
        )

    async def publish_loads(self, loads: Mapping[str, Load], *, by: str, ttl_s: float) -> None:
        """Worker id -> counters as just read."""
        now = time.time()
        async with self._store.client.pipeline(transaction=False) as pipe:
            for worker_id, load in loads.items():
                entry = PublishedLoad(now, load, by)
                pipe.set(self._keys.load(worker_id), msgspec.json.encode(entry), px=_ms(ttl_s))
            await pipe.execute()

    async def loads(self, worker_ids: Iterable[str]) -> dict[str, PublishedLoad]:
        """The loads that are known and not expired."""
        ids = list(worker_ids)
        if not ids:
            return {}
        values = await self._store.client.mget([self._keys.load(worker_id) for worker_id in ids])
        found = {k: _decode(value, PublishedLoad) for k, value in zip(ids, values, strict=True) if value}
        return {worker_id: load for worker_id, load in found.items() if load is not None}


def _ms(ttl_s: float) -> int:
    return max(1, int(ttl_s * 1000))


def _decode(value: bytes, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        # written by another version, or by hand: one bad entry must not hide the others
        _log.warning("ignoring an unreadable %s in the store: %s", kind.__name__, error)
        return None
