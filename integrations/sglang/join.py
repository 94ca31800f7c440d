"""Holds an outcome back, a moment at most, until the workers' records of the request have come."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from kvferry.integrations.log.record import DecisionRecord, Missing, Outcome
from kvferry.integrations.sglang.fleet import Fleet
from kvferry.integrations.sglang.join_outcome import told
from kvferry.integrations.sglang.join_stages import Door
from kvferry.integrations.sglang.join_trip import Key, Sent, Trip, part_of
from kvferry.integrations.sglang.plugin.wire import RequestRecord

log = logging.getLogger("kvferry.telemetry")

# A prefill worker records a request when its scheduler next looks, after the forward pass that it is in.
HOLD_S = 10.0
MOST_HELD = 10_000
PAST = 4096
SLACK_S = 0.1

Write = Callable[[DecisionRecord, Outcome], None]


@dataclass(slots=True, eq=False)
class _Held:
    """An ended request whose records have not all come."""

    trip: Trip
    record: DecisionRecord
    outcome: Outcome
    door: Door
    timer: asyncio.TimerHandle


@dataclass(slots=True, eq=False)
class Join:
    """Records meet the requests in flight or just ended; `write` is called once for every ended request.

    `count(result)`: `joined` (all records that were to come had come), `missed` (written without some),
    `late` (a record after that). Only requests with a worker whose telemetry is on, and has been heard
    lately, are held back: HOLD_S at most, and no more than MOST_HELD of them.
    """

    fleet: Fleet
    write: Write
    count: Callable[[str], None] = lambda result: None
    hold_s: float = HOLD_S
    most_held: int = MOST_HELD
    _trips: dict[Key, Trip] = field(default_factory=dict)
    _held: OrderedDict[Trip, _Held] = field(default_factory=OrderedDict)
    _past: OrderedDict[tuple[Key, str], None] = field(default_factory=OrderedDict)

    @property
    def held(self) -> int:
        """Outcomes held back now."""
        return len(self._held)

    def sent(self, sent: Sent) -> Trip:
        """An attempt goes out: its records are collected from now on."""
        parts, missing = set[str](), dict[str, Missing]()
        for part, worker in sent.workers().items():
            if silence := self.fleet.silence(worker):
                missing[worker] = silence
            elif sent.keys:
                parts.add(part)
            else:
                missing[worker] = "unnamed"
        trip = Trip(sent, frozenset(parts), missing, self.fleet.clock())
        for key in sent.keys if parts else ():
            other = self._trips.get(key)
            if other is not None and other in self._held:  # a client used its id again
                self._release(self._held[other])
            self._trips.setdefault(key, trip)  # the worker refuses an id that is in flight
        return trip

    def forget(self, trip: Trip) -> None:
        """This attempt was given up: what comes of it does not count."""
        for key in trip.sent.keys:
            if self._trips.get(key) is trip:
                del self._trips[key]

    def ended(self, trip: Trip | None, record: DecisionRecord, outcome: Outcome, door: Door) -> bool:
        """The request has ended. False: its outcome is held back, and `write` is yet to be called."""
        if trip is None:
            self.write(record, outcome)
            return True
        if trip.complete:
            self._finish(trip, record, outcome, door)
            return True
        loop = asyncio.get_running_loop()
        held = _Held(trip, record, outcome, door, loop.call_later(self.hold_s, self._expire, trip))
        self._held[trip] = held
        while len(self._held) > self.most_held:
            self._release(next(iter(self._held.values())))
        return False

    def take(self, worker: str, record: RequestRecord) -> None:
        """A record from a worker; one of a request that this router did not send is passed over."""
        split = record.role in ("prefill", "decode")
        key: Key | None = record.room if split else (worker, record.rid)
        if key is None:
            return
        trip = self._trips.get(key)
        if trip is None or not (split or self._plausible(trip, record)):
            if (key, part_of(record)) in self._past:
                self.count("late")
            return
        if trip.take(key, record) and trip.complete and trip in self._held:
            self._release(self._held[trip])

    async def drain(self, timeout_s: float) -> None:
        """Wait for what may still come, then write everything that is held back."""
        end_s = self.fleet.clock() + timeout_s
        while self._held and self.fleet.clock() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for held in tuple(self._held.values()):
            self._release(held)

    def _plausible(self, trip: Trip, record: RequestRecord) -> bool:
        """An id may be a client's own, and used again: a record that took longer is of an earlier request."""
        return record.wall_s <= self.fleet.clock() - trip.begun_s + SLACK_S

    def _expire(self, trip: Trip) -> None:
        if trip in self._held:
            self._release(self._held[trip])

    def _release(self, held: _Held) -> None:
        held.timer.cancel()
        del self._held[held.trip]
        self._finish(held.trip, held.record, held.outcome, held.door)

    def _finish(self, trip: Trip, record: DecisionRecord, outcome: Outcome, door: Door) -> None:
        self.forget(trip)
        silent = list(trip.silent())
        if trip.parts:
            self.count("missed" if silent else "joined")
            self._remember(trip)
        missing: dict[str, Missing] = {**trip.missing, **dict.fromkeys(silent, "no_record")}
        hosts = {self.fleet.members[worker].worker.host for worker in trip.sent.workers().values()}
        try:
            outcome = told(record.request, outcome, trip, door, one_clock=len(hosts) == 1, missing=missing)
        except Exception:
            log.exception("records of %s make no sense: its outcome is written without them", record.id)
        self.write(record, outcome)

    def _remember(self, trip: Trip) -> None:
        wanted = ((key, part) for key in trip.sent.keys for part in trip.parts)
        self._past |= dict.fromkeys(place for place in wanted if place not in trip.records)
        while len(self._past) > PAST:
            self._past.popitem(last=False)
