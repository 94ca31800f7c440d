"""The streams of decisions, of outcomes and of the cluster tables that decisions refer to: capped, at least
once; a reader drops repeats by id."""

from collections.abc import AsyncIterator, Sequence
from typing import Literal, NamedTuple

from kvferry.integrations.redis.connection import Store

MAXLEN = 20_000
MAX_TABLES = 256  # those in use are told again now and then
Kind = Literal["decision", "outcome", "cluster"]


class Entry(NamedTuple):
    """One line for a stream; `data` is JSON."""

    kind: Kind
    id: str
    data: bytes


class Streams:
    """Raises what redis-py raises."""

    def __init__(self, store: Store, *, maxlen: int = MAXLEN) -> None:
        self._store = store
        self._maxlen = maxlen
        keys = store.keys
        self._names = {"decision": keys.decisions, "outcome": keys.outcomes, "cluster": keys.clusters}

    async def add(self, entries: Sequence[Entry]) -> None:
        """Append in order, in one round trip."""
        if not entries:
            return
        async with self._store.client.pipeline(transaction=False) as pipe:
            for entry in entries:
                fields = {"id": entry.id, "data": entry.data}
                most = MAX_TABLES if entry.kind == "cluster" else self._maxlen
                pipe.xadd(self._names[entry.kind], fields, maxlen=most, approximate=True)
            await pipe.execute()

    async def read(
        self, kind: Kind, *, after: str = "-", page: int = 500
    ) -> AsyncIterator[tuple[str, Entry]]:
        """(stream id, entry) from `after` (exclusive; "-": the beginning) to the present end, by pages."""
        start = after if after == "-" else f"({after}"
        while True:
            rows = await self._store.client.xrange(self._names[kind], min=start, max="+", count=page)
            for row in rows:
                yield _entry(kind, row)
            if len(rows) < page:
                return
            start = f"({rows[-1][0].decode()}"

    async def last_id(self, kind: Kind) -> str:
        """The stream id of the newest entry; "0-0" of an empty stream."""
        rows = await self._store.client.xrevrange(self._names[kind], count=1)
        return rows[0][0].decode() if rows else "0-0"

    async def wait(self, kind: Kind, *, after: str, block_s: float) -> list[tuple[str, Entry]]:
        """What comes after stream id `after`, waiting up to `block_s` for the first."""
        block = max(1, int(block_s * 1000))
        name = self._names[kind]
        answer = await self._store.client.xread({name: after}, count=500, block=block)
        rows = answer[0][1] if answer else []
        return [_entry(kind, row) for row in rows]


def _entry(kind: Kind, row: tuple[bytes, dict[bytes, bytes]]) -> tuple[str, Entry]:
    stream_id, fields = row
    return stream_id.decode(), Entry(kind, fields.get(b"id", b"").decode(), fields.get(b"data", b""))
