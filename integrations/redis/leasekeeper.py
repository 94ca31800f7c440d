"""Keeps the store's leases equal to this router's in-flight requests, in the background."""

import asyncio
import contextlib
import time
from collections.abc import Iterable

from kvferry.integrations.redis.background import Background
from kvferry.integrations.redis.connection import STORE_FAILURES, Store
from kvferry.integrations.redis.health import Health
from kvferry.integrations.redis.leases import LeaseEntry, LeaseOp, Leases

_CHUNK = 500


class LeaseKeeper(Background):
    """Sends states, not steps, so a lost message costs nothing: after an outage all is written anew.

    `ttl_s`: how long the leases outlive a crash of this router; they are renewed three times as often.
    """

    def __init__(
        self, store: Store, router: str, health: Health, *, ttl_s: float = 15.0, retry_s: float = 0.5
    ) -> None:
        super().__init__("leases")
        self._leases = Leases(store, router)
        self._health = health
        self._ttl_s, self._retry_s = ttl_s, retry_s
        self._live: dict[str, tuple[LeaseEntry, ...]] = {}
        self._dirty: set[str] = set()
        self._rewrite = True  # a predecessor of the same name may have crashed
        self._renew_at = 0.0

    @property
    def live(self) -> int:
        """Requests in flight, as far as leases go."""
        return len(self._live)

    def acquire(self, lease_id: str, entries: Iterable[LeaseEntry]) -> None:
        """Hold, or hold something else from now on."""
        self._live[lease_id] = tuple(entries)
        self._touch(lease_id)

    def prefill_done(self, lease_id: str) -> None:
        """Keep decodes and context only."""
        held = self._live.get(lease_id)
        if held is not None and any(entry.prefill_tokens for entry in held):
            self._live[lease_id] = tuple(entry._replace(prefill_tokens=0) for entry in held)
            self._touch(lease_id)

    def release(self, lease_id: str) -> None:
        if self._live.pop(lease_id, None) is not None:
            self._touch(lease_id)

    async def close(self, timeout_s: float) -> None:
        """Give everything back, if the store answers; else it expires there."""
        await self._end(timeout_s)
        self._live.clear()
        if self._health.up:
            with contextlib.suppress(*STORE_FAILURES):
                await self._leases.reset()

    def _touch(self, lease_id: str) -> None:
        self._dirty.add(lease_id)
        self._poke()

    async def _step(self) -> float | None:
        dirty, self._dirty = self._dirty, set()
        try:
            if self._rewrite:
                self._rewrite = False
                await self._apply([LeaseOp("reset"), *map(self._op, list(self._live))])
                self._renew_at = time.monotonic() + self._ttl_s / 3
            else:
                await self._apply([self._op(lease_id) for lease_id in dirty])
                await self._renew()
        except STORE_FAILURES as error:
            self._rewrite = True  # and what was dirty is part of that
            self._dirty.clear()
            self._health.failure("leases", error)
            await asyncio.sleep(self._retry_s)  # not a pause: requests that come and go must not cut it short
            return 0.0
        self._health.success("leases")
        return 0.0 if self._dirty else max(0.0, self._renew_at - time.monotonic())

    async def _renew(self) -> None:
        if time.monotonic() < self._renew_at:
            return
        self._renew_at = time.monotonic() + self._ttl_s / 3
        ids = list(self._live)
        answers = await self._apply([LeaseOp("renew", lease_id, self._ttl_s) for lease_id in ids])
        for lease_id, known in zip(ids, answers, strict=True):
            if not known and lease_id in self._live:
                self._dirty.add(lease_id)

    async def _apply(self, ops: list[LeaseOp]) -> list[int]:
        answers: list[int] = []
        for start in range(0, len(ops), _CHUNK):
            answers += await self._leases.apply(ops[start : start + _CHUNK])
        return answers

    def _op(self, lease_id: str) -> LeaseOp:
        entries = self._live.get(lease_id)
        if entries is None:
            return LeaseOp("release", lease_id)
        return LeaseOp("set", lease_id, self._ttl_s, entries)
