"""Runs a simulation's events as real time passes."""

import asyncio
import time
from typing import Self

from kvferry.models.simulator.events import Events

# Timers of uvloop have milliseconds: one that is set for its event's very time may come before it.
LATE_S = 0.0005


class Pump:
    """One timer on the running loop, always set for the next event. Time begins when the pump is made.

    Whoever asks something of the simulation does it `with pump:`: its time is now then, and afterwards the
    timer is set for what is next by then.
    """

    __slots__ = ("_began_s", "_began_wall_s", "_due_s", "_loop", "_timer", "events", "scale")

    def __init__(self, events: Events, scale: float = 1.0) -> None:
        self.events, self.scale = events, scale
        self._loop = asyncio.get_running_loop()
        self._began_s, self._began_wall_s = self._loop.time(), time.time()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s: float | None = None

    @property
    def now_s(self) -> float:
        """Simulated time by the clock; the events may be behind it."""
        return (self._loop.time() - self._began_s) * self.scale

    def wall_s(self, simulated_s: float) -> float:
        """The Unix time at which it is so late in the simulation."""
        return self._began_wall_s + simulated_s / self.scale

    def __enter__(self) -> Self:
        self.catch_up()
        return self

    def __exit__(self, *_: object) -> None:
        self.poke()

    def catch_up(self) -> None:
        """Make all calls that are due by now."""
        self.events.run(max(self.now_s, self.events.now_s))

    def poke(self) -> None:
        """Set the timer for what is next by now."""
        next_s = self.events.next_s
        if next_s == self._due_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_s, self._timer = next_s, None
        if next_s is not None:
            self._timer = self._loop.call_at(self._began_s + next_s / self.scale + LATE_S, self._run)

    def stop(self) -> None:
        """Make no more calls by itself."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._due_s = None

    def _run(self) -> None:
        self._timer = self._due_s = None
        try:
            self.catch_up()
        finally:  # one call that fails is the loop's to tell of; the others still have their time
            self.poke()
