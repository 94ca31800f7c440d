"""A blocking redis-py client for the sink thread, of every kind of store that the router knows."""

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry
from redis.sentinel import Sentinel

from kvferry.integrations.redis.url import Address


def connect(address: Address, *, timeout_s: float, name: str) -> Any:
    """Single, Sentinel or Cluster, over TCP, TLS or a Unix socket. It connects when first used, and never
    retries: the sink does. `timeout_s` bounds every connect and every answer."""
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "client_name": name,
        **address.options,
    }
    once = Retry(NoBackoff(), 0)
    if address.kind == "cluster":
        node: Any = ClusterNode  # untyped in redis-py
        nodes = [node(host, port) for host, port in address.hosts]
        return redis.RedisCluster(startup_nodes=nodes, **options)
    if address.kind == "sentinel":
        timeouts = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        sentinels: Any = Sentinel  # untyped in redis-py
        sentinel = sentinels(
            list(address.hosts),
            sentinel_kwargs={**timeouts, **address.sentinel_options},
            **options,
            retry=once,
        )
        return sentinel.master_for(address.service)
    return redis.Redis(**options, retry=once)
