"""A task beside the router that works in steps and cannot be killed by an error."""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod

_log = logging.getLogger("kvferry.redis")


class Background(ABC):
    """`_step` does some work and returns how long to pause, in seconds (None: until poked)."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closing = False

    def start(self) -> None:
        """Begin; needs the running event loop."""
        self._task = asyncio.create_task(self._loop(), name=f"kvferry-{self._name}")

    @abstractmethod
    async def _step(self) -> float | None:
        """One piece of work; the pause after it."""

    def _poke(self) -> None:
        self._wake.set()

    async def _pause(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()

    async def _loop(self) -> None:
        while not self._closing:
            try:
                pause = await self._step()
            except Exception:  # noqa: BLE001 - the log says what; without this task nothing is delivered
                _log.exception("%s: unexpected error, trying again", self._name)
                pause = 1.0
            if pause is None or pause > 0:
                await self._pause(pause)

    async def _end(self, timeout_s: float) -> None:
        """Let the current step finish, for `timeout_s` at most."""
        self._closing = True
        self._poke()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout_s)
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
