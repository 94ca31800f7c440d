"""The transports of a worker that has two, and where its registries tell which is whose."""

PRIMARY = "mooncake"  # what the worker was started with
SECOND = "nixl"
TRANSPORTS = (PRIMARY, SECOND)
ROUTE = "/kv_transport"
