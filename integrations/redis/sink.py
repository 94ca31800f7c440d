"""Where the router puts what it decided and what came of it."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from kvferry.integrations.log.background import BackgroundLog
from kvferry.integrations.log.codec import write_outcome, write_record
from kvferry.integrations.log.jsonl import JsonlWriter
from kvferry.integrations.log.record import DecisionRecord, Outcome
from kvferry.integrations.redis.connection import Store
from kvferry.integrations.redis.delivery import Delivery
from kvferry.integrations.redis.health import Health
from kvferry.integrations.redis.leasekeeper import LeaseKeeper
from kvferry.integrations.redis.leases import LeaseEntry
from kvferry.integrations.redis.spool import Spool
from kvferry.integrations.redis.streams import Entry, Kind

_log = logging.getLogger("kvferry.redis")


class Sink:
    """Every method but `start` and `close` returns at once, whatever the store and the disk do.

    To be called from the event loop's own thread. `router` names this router among those that share the
    store: unique while it lives, the same after a restart, so that it clears its crashed predecessor.
    `state_dir` holds the spool; `log` writes joined records (None: they are not written to files).
    """

    def __init__(
        self,
        store: Store,
        *,
        router: str,
        state_dir: Path,
        log: JsonlWriter | None = None,
        lease_ttl_s: float = 15.0,
        spool_max_bytes: int = 256 << 20,
        retry_s: float = 0.25,
    ) -> None:
        self.health = Health(store.label, pending=lambda: self.queued + self.spooled)
        # an embedded store has another socket at every start, and still is the same one
        name = f"{store.keys.namespace}@{'embedded' if store.embedded else store.label}"
        self._delivery = Delivery(
            store, self.health, _spool(state_dir / "spool", name, spool_max_bytes), retry_s=retry_s
        )
        self._leases = LeaseKeeper(store, router, self.health, ttl_s=lease_ttl_s, retry_s=retry_s)
        self._log = BackgroundLog(log) if log is not None else None

    def start(self) -> None:
        """Begin delivering, with what an earlier run left in the spool; needs the running event loop."""
        self._delivery.start()
        self._leases.start()
        if self._log is not None:
            self._log.start()

    async def close(self, drain_s: float = 2.0) -> None:
        """Give the leases back, deliver what is left or leave it in the spool, finish the log file."""
        await self._leases.close(timeout_s=drain_s)
        await self._delivery.close(drain_s)
        if self._log is not None:
            await self._log.close()

    def decision(self, record: DecisionRecord) -> None:
        """To the decision stream; the outcome follows on its own."""
        self._put("decision", record.id, lambda: write_record(record))

    def outcome(self, request_id: str, outcome: Outcome) -> None:
        """To the outcome stream."""
        self._put("outcome", request_id, lambda: write_outcome(outcome))

    def joined(self, record: DecisionRecord) -> None:
        """A finished request, with its outcome, to the log file."""
        if self._log is not None:
            self._log.put(record)

    def table(self, name: str, line: bytes) -> None:
        """A cluster table, before the first record whose picture names it; again: it is kept for longer."""
        self._put("cluster", name, lambda: line)
        if self._log is not None:
            self._log.table(name, line)

    def lease_acquire(self, lease_id: str, entries: Iterable[LeaseEntry]) -> None:
        """Tell other routers what this request puts on which worker; again: replaces it (rescue)."""
        self._leases.acquire(lease_id, entries)

    def lease_prefill_done(self, lease_id: str) -> None:
        self._leases.prefill_done(lease_id)

    def lease_release(self, lease_id: str) -> None:
        self._leases.release(lease_id)

    def _put(self, kind: Kind, request_id: str, encode: Callable[[], bytes]) -> None:
        try:
            self._delivery.put(Entry(kind, request_id, encode()))
        except (TypeError, ValueError, OverflowError) as error:
            # a value JSON cannot hold: our own mistake, which must not cost the client its answer
            self._delivery.dropped += 1
            _log.error("cannot write the %s of %s: %s", kind, request_id, error)

    @property
    def up(self) -> bool:
        """Whether the store answers."""
        return self.health.up

    @property
    def queued(self) -> int:
        """Stream entries waiting in memory."""
        return self._delivery.queued

    @property
    def spooled(self) -> int:
        """Stream entries waiting on disk."""
        return self._delivery.spooled

    @property
    def delivered(self) -> int:
        """Stream entries delivered since the start."""
        return self._delivery.delivered

    @property
    def dropped(self) -> int:
        """Stream entries lost since the start because memory or the spool was full."""
        return self._delivery.dropped

    @property
    def live_leases(self) -> int:
        return self._leases.live

    @property
    def log_written(self) -> int:
        """Records written to the log file since the start."""
        return self._log.written if self._log is not None else 0

    @property
    def log_dropped(self) -> int:
        """Records the log file lost since the start."""
        return self._log.dropped if self._log is not None else 0


def _spool(root: Path, name: str, max_bytes: int) -> Spool | None:
    try:
        return Spool(root, name, max_bytes=max_bytes)
    except OSError as error:
        _log.error("no spool under %s (%s): log entries wait in memory while the store is away", root, error)
        return None
