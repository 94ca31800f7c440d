"""A connection to the store: any Redis 7 or Valkey 8+, alone, behind Sentinels, or a Cluster."""

from typing import Any

import redis.asyncio as redis
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from kvferry.integrations.redis.embedded import EmbeddedValkey
from kvferry.integrations.redis.keys import Keys
from kvferry.integrations.redis.url import Address, StoreError, parse, redact

# what a store that is gone, slow or refusing raises
STORE_FAILURES = (RedisError, OSError, TimeoutError)


class Store:
    """A redis-py client and the names of our keys. `label` is the URL without secrets, for messages."""

    def __init__(self, client: Any, keys: Keys, label: str, embedded: EmbeddedValkey | None = None) -> None:
        self.client = client
        self.keys = keys
        self.label = label
        self.embedded = embedded

    async def check(self) -> None:
        """Raises StoreError, in one line, unless the store answers."""
        try:
            await self.client.ping()
        except STORE_FAILURES as error:
            raise StoreError(f"store {self.label} does not answer: {why(error)}") from None

    async def revive(self) -> None:
        """Start the embedded server again should it have died; a store of somebody else is left alone."""
        if self.embedded is not None:
            await self.embedded.start()

    async def close(self) -> None:
        """Close the connections, and end the embedded server."""
        await self.client.aclose()
        if self.embedded is not None:
            self.embedded.stop()


async def open_store(
    url: str | None = None,
    *,
    namespace: str = "kvferry",
    timeout_s: float = 1.0,
    client_name: str = "kvferry",
) -> Store:
    """Open `url`, or start an embedded Valkey when it is None. Raises StoreError for an unusable URL.

    A store that does not answer yet is no error here: everything in this package waits for it in the
    background. `timeout_s` bounds every connect and every answer.
    """
    if url is None:
        embedded = EmbeddedValkey()
        await embedded.start()
        client = connect(parse(embedded.url), timeout_s=timeout_s, client_name=client_name)
        return Store(client, Keys(namespace), f"embedded Valkey ({embedded.url})", embedded)
    client = connect(parse(url), timeout_s=timeout_s, client_name=client_name)
    return Store(client, Keys(namespace), redact(url))


def connect(address: Address, *, timeout_s: float = 1.0, client_name: str = "kvferry") -> Any:
    """A redis-py client; it connects when first used and does not retry: our callers do, with a spool."""
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "client_name": client_name,
        **address.options,
    }
    once = Retry(NoBackoff(), 0)
    if address.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        return redis.RedisCluster(startup_nodes=nodes, **options)
    if address.kind == "sentinel":
        timeouts = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        settings = {**timeouts, **address.sentinel_options}
        sentinels: Any = Sentinel  # untyped in redis-py
        sentinel = sentinels(list(address.hosts), sentinel_kwargs=settings, **options, retry=once)
        return sentinel.master_for(address.service)
    return redis.Redis(**options, retry=once)


def why(error: BaseException) -> str:
    """An error in one line, without secrets."""
    text = " ".join(str(error).split()) or type(error).__name__
    return redact(text)
