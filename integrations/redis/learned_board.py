"""Where routers leave what they have learned: one field each, and beside it when that was told."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kvferry.integrations.redis.connection import Store
from kvferry.integrations.redis.script import Script

_SEP = "\x1f"
_TIMES = Script("learned_times.lua")

MOST_BYTES = 256 * 1024
MOST_TIMES = 4096
MOST_TIME_BYTES = 256


class Place(NamedTuple):
    """Which evidence, of which router."""

    kind: str
    router: str

    @property
    def field(self) -> str:
        return self.kind + _SEP + self.router


class Told(msgspec.Struct, frozen=True):
    """`at`: Unix seconds of the store's clock; `life` differs after every start, `revision` grows within."""

    at: float
    life: str
    revision: int

    def same(self, other: "Told | None") -> bool:
        """Whether it is of the same evidence."""
        return other is not None and (self.life, self.revision) == (other.life, other.revision)


class LearnedBoard:
    """Raises what redis-py raises. `complain(place, what)` is told of each field that is passed over: too
    long, or no JSON of ours. Nothing longer than MOST_BYTES is ever read."""

    def __init__(self, store: Store, complain: Callable[[Place, str], None]) -> None:
        self._store, self._complain = store, complain

    async def times(self, kinds: Iterable[str]) -> tuple[float, dict[Place, Told]]:
        """The store's clock, Unix seconds, and who has told of these kinds."""
        key, wanted = self._store.keys.learned_times, frozenset(kinds)
        answer = await _TIMES.run(self._store.client, [key], [b"%d" % MOST_TIMES])
        seconds, micros, count, flat = answer
        now_s = float(seconds) + 1e-6 * float(micros)
        if count > MOST_TIMES:
            self._complain(Place("", ""), f"{key} has {count} fields, more than {MOST_TIMES}")
        found = dict[Place, Told]()
        for field, value in zip(flat[::2], flat[1::2], strict=True):
            kind, _, router = field.decode(errors="replace").partition(_SEP)
            place = Place(kind, router)
            if kind in wanted and router and (told := self._told(place, value)) is not None:
                found[place] = told
        return now_s, found

    async def read(self, kind: str, routers: Sequence[str]) -> list[tuple[str, bytes]]:
        """The evidence of these routers, as far as it is there and not too long."""
        if not routers:
            return []
        client, key = self._store.client, self._store.keys.learned(kind)
        async with client.pipeline(transaction=False) as pipe:
            for router in routers:
                pipe.hstrlen(key, router)
            lengths = dict(zip(routers, await pipe.execute(), strict=True))
        for router, length in lengths.items():
            if length > MOST_BYTES:
                self._complain(Place(kind, router), f"{length} bytes, more than {MOST_BYTES}")
        fit = [router for router, length in lengths.items() if 0 < length <= MOST_BYTES]
        values = await client.hmget(key, fit) if fit else []
        return [(router, value) for router, value in zip(fit, values, strict=True) if value is not None]

    async def write(self, told: Mapping[Place, Told], evidence: Mapping[Place, bytes]) -> None:
        """Times come last: a write that is cut short is told again."""
        keys = self._store.keys
        async with self._store.client.pipeline(transaction=False) as pipe:
            for place, data in evidence.items():
                pipe.hset(keys.learned(place.kind), place.router, data)
            for place, time in told.items():
                pipe.hset(keys.learned_times, place.field, msgspec.json.encode(time))
            await pipe.execute()

    async def drop(self, places: Iterable[Place]) -> None:
        """A router that comes back in this very moment misses its field, and tells all of it again."""
        keys = self._store.keys
        async with self._store.client.pipeline(transaction=False) as pipe:
            for place in places:
                pipe.hdel(keys.learned(place.kind), place.router)
                pipe.hdel(keys.learned_times, place.field)
            await pipe.execute()

    def _told(self, place: Place, value: bytes) -> Told | None:
        try:
            if len(value) > MOST_TIME_BYTES:
                raise ValueError(f"{len(value)} bytes, more than {MOST_TIME_BYTES}")
            return msgspec.json.decode(value, type=Told)
        except ValueError as error:  # as msgspec's own errors are
            self._complain(place, f"its time is none: {error}")
            return None
