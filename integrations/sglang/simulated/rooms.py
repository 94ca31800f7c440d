"""Where the halves of split requests meet: the bootstrap rooms of one simulated prefill worker."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kvferry.integrations.sglang.plugin.wire import Transfer
from kvferry.integrations.sglang.simulated.flight import Flight
from kvferry.models.simulator.events import Event, Events
from kvferry.models.simulator.job import Job


class Taker(Protocol):
    """The decode half, which has KV room by now."""

    @property
    def worker(self) -> str:
        """Whose it is."""

    @property
    def held_tokens(self) -> int:
        """Of the prompt, what that worker has in its own cache."""

    def moved(self, cached_tokens: int) -> None:
        """The KV is there; of the prompt so many tokens were in the prefill worker's cache."""

    def lost(self, why: str) -> None:
        """It will not come."""


class Move(Protocol):
    """A KV cache on its way."""

    def add(self, tokens: int) -> None:
        """So many more prompt tokens can travel."""

    def close(self) -> None:
        """Those were all."""

    def cancel(self) -> None:
        """Nobody waits for it any more."""

    def told(self) -> Transfer:
        """What has been moved, in real seconds."""


class Carry(Protocol):
    """What moves KV."""

    def meeting_s(self, destination: str) -> float:
        """What it takes until a pair can begin; 0 once it has met."""

    def begin(self, destination: str, prompt_tokens: int, held_tokens: int, done: Callable[[], None]) -> Move:
        """A move that has nothing to send yet."""


@dataclass(slots=True, eq=False)
class _Room:
    flight: Flight | None = None
    taker: Taker | None = None
    move: Move | None = None
    timer: Event | None = None
    computed: bool = False


class Rooms:
    """`submit` queues a prompt for prefill, `done` ends a flight whose KV has left, `fail` one that never
    met its other half or has lost it. A prefill is not begun before the decode half has KV room, as in
    SGLang; half a pair is given up after `timeout_s`."""

    def __init__(
        self,
        events: Events,
        carry: Carry,
        timeout_s: float,
        submit: Callable[[Flight], None],
        done: Callable[[Flight], None],
        fail: Callable[[Flight, str], None],
    ) -> None:
        self._events, self._carry, self._timeout_s = events, carry, timeout_s
        self._submit, self._done, self._fail = submit, done, fail
        self._rooms: dict[int, _Room] = {}
        self._of: dict[Job, int] = {}

    @property
    def waiting(self) -> list[Flight]:
        """Prefill halves whose other half has not come."""
        return [room.flight for room in self._rooms.values() if room.flight and not room.taker]

    def enter(self, number: int, flight: Flight) -> None:
        """A prefill half. KeyError when the room has one."""
        room = self._rooms.setdefault(number, _Room())
        if room.flight is not None:
            raise KeyError(number)
        room.flight = flight
        self._of[flight.job] = number
        self._meet(number, room)

    def take(self, number: int, taker: Taker) -> None:
        """A decode half. KeyError when the room has one."""
        room = self._rooms.setdefault(number, _Room())
        if room.taker is not None:
            raise KeyError(number)
        room.taker = taker
        self._meet(number, room)

    def chunk(self, job: Job, tokens: int) -> None:
        """Some of a prompt is computed and travels."""
        number = self._of.get(job)
        room = self._rooms.get(number) if number is not None else None
        if number is None or room is None or room.taker is None:
            return
        if room.move is None:
            taker, done = room.taker, partial(self._arrived, number)
            room.move = self._carry.begin(taker.worker, job.prompt_tokens, taker.held_tokens, done)
        room.move.add(tokens)

    def computed(self, job: Job) -> None:
        """All of it is."""
        number = self._of.get(job)
        room = self._rooms[number] if number is not None else None
        if room is not None and room.move is not None:
            room.computed = True
            room.move.close()

    def leave(self, job: Job, why: str) -> bool:
        """The prefill half is gone, and with it the other one; whether its prompt had been computed."""
        number = self._of.get(job)
        if number is None:
            return False
        room = self._close(number)
        if room.taker is not None:
            room.taker.lost(why)
        return room.computed

    def withdraw(self, number: int, taker: Taker, why: str) -> None:
        """The decode half is gone."""
        room = self._rooms.get(number)
        if room is None or room.taker is not taker:
            return
        self._close(number)
        if room.flight is not None:
            self._fail(room.flight, why)

    def empty(self, why: str) -> None:
        """The worker is gone."""
        for number in list(self._rooms):
            room = self._close(number)
            if room.taker is not None:
                room.taker.lost(why)

    def _meet(self, number: int, room: _Room) -> None:
        if room.flight is None or room.taker is None:
            room.timer = self._events.at(self._events.now_s + self._timeout_s, self._expire, number)
            return
        if room.timer is not None:
            room.timer.cancel()
            room.timer = None
        meeting_s = self._carry.meeting_s(room.taker.worker)
        if meeting_s:
            self._events.at(self._events.now_s + meeting_s, self._met, number, room.flight)
        else:
            self._submit(room.flight)

    def _met(self, number: int, flight: Flight) -> None:
        if self._of.get(flight.job) == number:
            self._submit(flight)

    def _arrived(self, number: int) -> None:
        room = self._close(number)
        assert room.flight is not None
        assert room.taker is not None
        assert room.move is not None
        room.flight.transfer = room.move.told()
        self._done(room.flight)
        room.taker.moved(room.flight.job.cached_tokens)

    def _expire(self, number: int) -> None:
        room = self._close(number)
        if room.flight is not None:
            self._fail(room.flight, _timed_out(number, self._timeout_s, "Bootstrapping"))
        if room.taker is not None:
            room.taker.lost(_timed_out(number, self._timeout_s, "WaitingForInput"))

    def _close(self, number: int) -> _Room:
        room = self._rooms.pop(number)
        if room.timer is not None:
            room.timer.cancel()
        if room.move is not None:
            room.move.cancel()
        if room.flight is not None:
            self._of.pop(room.flight.job, None)
        return room


def _timed_out(number: int, timeout_s: float, state: str) -> str:
    """In SGLang's words, which routers know a failed move by."""
    return f"KVTransferError(bootstrap_room={number}): timed out after {timeout_s:.1f}s in KVPoll.{state}"
