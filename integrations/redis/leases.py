"""In-flight leases: what every router has promised every worker, so that routers do not herd.

A lease belongs to a router and expires by the server's clock unless it is renewed, so a crashed
router's promises go away by themselves. Every operation may be repeated without harm.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from kvferry.integrations.redis.connection import Store
from kvferry.integrations.redis.script import Script

_SEP = "\x1f"
_KINDS = {"p": 0, "d": 1, "c": 2}
_APPLY = Script("leases_common.lua", "leases_apply.lua")
_TOTALS = Script("leases_common.lua", "leases_totals.lua")
_MAX = 10**12  # Lua numbers are exact, and printed exactly, well beyond this


class LeaseEntry(NamedTuple):
    """What one request puts on one worker; a split request has an entry for each of its two."""

    worker: str
    prefill_tokens: int = 0
    decodes: int = 0
    context_tokens: int = 0


class LeaseTotals(NamedTuple):
    """Sums over live leases."""

    prefill_tokens: int = 0
    decodes: int = 0
    context_tokens: int = 0

    def plus(self, other: "LeaseTotals") -> "LeaseTotals":
        return LeaseTotals(*(a + b for a, b in zip(self, other, strict=True)))


class LeaseOp(NamedTuple):
    """One step of `Leases.apply`. `set` replaces a lease of the same id, `reset` drops all the router has."""

    op: Literal["set", "prefill_done", "renew", "release", "reset"]
    lease_id: str = ""
    ttl_s: float = 0.0
    entries: Sequence[LeaseEntry] = ()


class Leases:
    """The leases of `router`; `totals` are those of all. Raises what redis-py raises."""

    def __init__(self, store: Store, router: str) -> None:
        if _SEP in router:
            raise ValueError(f"router name {router!r} has a unit separator")
        self.router = router
        self._store = store
        keys = store.keys
        self._keys = [keys.leases, keys.lease_expiry, keys.lease_totals]

    async def acquire(self, lease_id: str, entries: Iterable[LeaseEntry], ttl_s: float) -> None:
        """Hold `entries` for `ttl_s`; an existing lease of this id is replaced."""
        await self.apply([LeaseOp("set", lease_id, ttl_s, tuple(entries))])

    async def prefill_done(self, lease_id: str) -> bool:
        """Give back the prefill tokens, keep decodes and context. False: unknown or already done."""
        return bool((await self.apply([LeaseOp("prefill_done", lease_id)]))[0])

    async def renew(self, lease_id: str, ttl_s: float) -> bool:
        """Let the lease run for `ttl_s` from now. False: it is gone and must be acquired again."""
        return bool((await self.apply([LeaseOp("renew", lease_id, ttl_s)]))[0])

    async def release(self, lease_id: str) -> bool:
        """Give everything back. False: there was nothing (released or expired before)."""
        return bool((await self.apply([LeaseOp("release", lease_id)]))[0])

    async def reset(self) -> int:
        """Give back all leases of this router (left over from a crash); returns how many there were."""
        return (await self.apply([LeaseOp("reset")]))[0]

    async def apply(self, ops: Sequence[LeaseOp]) -> list[int]:
        """Many steps, in order, atomically and in one round trip; how many leases each one changed."""
        if not ops:
            return []
        payload = [
            (op.op, self.router + _SEP + op.lease_id, max(0, int(op.ttl_s * 1000)), _clean(op.entries))
            for op in ops
        ]
        answers = await _APPLY.run(self._store.client, self._keys, [msgspec.json.encode(payload)])
        return [int(answer) for answer in answers]

    async def totals(self) -> dict[str, dict[str, LeaseTotals]]:
        """router -> worker -> sums over its live leases; what has expired is dropped first."""
        flat = await _TOTALS.run(self._store.client, self._keys, [])
        sums: dict[str, dict[str, list[int]]] = {}
        for field, value in zip(flat[::2], flat[1::2], strict=True):
            router, worker, kind = field.decode().split(_SEP)
            sums.setdefault(router, {}).setdefault(worker, [0, 0, 0])[_KINDS[kind]] = int(value)
        return {
            router: {worker: LeaseTotals(*values) for worker, values in workers.items()}
            for router, workers in sums.items()
        }


def total_of(
    totals: dict[str, dict[str, LeaseTotals]], *, without: str | None = None
) -> dict[str, LeaseTotals]:
    """worker -> sums over all routers but `without`."""
    merged: dict[str, LeaseTotals] = {}
    for router, workers in totals.items():
        if router != without:
            for worker, sums in workers.items():
                merged[worker] = merged.get(worker, LeaseTotals()).plus(sums)
    return merged


def _clean(entries: Iterable[LeaseEntry]) -> list[tuple[str, int, int, int]]:
    return [
        (
            entry.worker.replace(_SEP, " "),
            _count(entry.prefill_tokens),
            _count(entry.decodes),
            _count(entry.context_tokens),
        )
        for entry in entries
    ]


def _count(number: float) -> int:
    return min(_MAX, max(0, int(number)))
