"""Where routers tell how their learning is: one entry each, which expires."""

from collections.abc import Callable

import msgspec

from kvferry.integrations.redis.connection import Store
from kvferry.models.health.snapshot import MOST_BYTES, Snapshot, read_snapshot


async def tell(store: Store, snapshot: Snapshot, ttl_s: float) -> None:
    """In place of what this router told before. Raises what redis-py raises."""
    keys = store.keys
    async with store.client.pipeline(transaction=False) as pipe:
        pipe.set(keys.learning(snapshot.router), msgspec.json.encode(snapshot), px=int(ttl_s * 1000))
        pipe.sadd(keys.learning_routers, snapshot.router)
        await pipe.execute()


async def told(store: Store, complain: Callable[[str, str], None]) -> list[Snapshot]:
    """What live routers told, by name; `complain(router, what)` of what is none. Raises as redis-py does."""
    keys, found = store.keys, list[Snapshot]()
    names = sorted(await store.client.smembers(keys.learning_routers))
    for name in names:
        router = name.decode(errors="replace")
        data = await store.client.getrange(keys.learning(router), 0, MOST_BYTES)
        if not data:
            await store.client.srem(keys.learning_routers, name)
            continue
        try:
            found.append(msgspec.structs.replace(read_snapshot(data), router=router))
        except ValueError as error:
            complain(router, str(error))
    return found
