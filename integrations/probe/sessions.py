"""The sessions of an agent: how much memory they have, and that none is left behind."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kvferry.integrations.probe.messages import Open
from kvferry.integrations.probe.session import Session
from kvferry.integrations.sglang.errors import ApiError

__all__ = ["Sessions"]

log = logging.getLogger("kvferry.probe")

SWEEP_S = 10.0
NAME_CHARACTERS = 64
# So long a peer whose move failed or was given up may go on writing.
HOLD_S = 30.0


@dataclass(slots=True)
class _Held:
    """`calls`: requests that use it now."""

    session: Session
    used_s: float
    calls: int = 0


class Sessions:
    """At most `memory_bytes` of memory at once; a session that nobody uses for `idle_s` seconds is closed."""

    def __init__(self, agent: str, memory_bytes: int, idle_s: float) -> None:
        # Part of URLs and of sockets' names, whatever the host is called.
        self._agent = re.sub(r"[^A-Za-z0-9.-]+", "-", agent)[:NAME_CHARACTERS]
        self._memory_bytes, self._idle_s = memory_bytes, idle_s
        self._held: dict[str, _Held] = {}
        self.taken_bytes = 0
        self._sweeper = asyncio.create_task(self._sweep())
        self._later: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._held)

    def in_use(self, name: str) -> bool:
        """Whether a request uses the session now."""
        held = self._held.get(name)
        return held is not None and held.calls > 0

    async def open(self, asked: Open, host: str) -> Session:
        """Raises ApiError where that is more memory than there is, and what `Session` raises."""
        if asked.nbytes > self._memory_bytes:
            raise ApiError(
                f"moves of {_mib(asked.nbytes)} are more than this agent gives ({_mib(self._memory_bytes)}): "
                "start it with a larger --memory-mib, or probe with a smaller --largest-mib",
                status=400,
                kind="invalid_request_error",
                param="nbytes",
            )
        if self.taken_bytes + asked.nbytes > self._memory_bytes:
            raise ApiError(
                f"{_mib(self.taken_bytes)} of {_mib(self._memory_bytes)} are taken by other probes: "
                "try later, start it with a larger --memory-mib, or probe with a smaller --largest-mib",
                status=503,
            )
        # Shielded: of whoever asked and went away, the session must still be known to be closed.
        return await asyncio.shield(self._make(asked, host))

    @contextmanager
    def using(self, name: str) -> Iterator[Session]:
        """A session that is not closed for idleness meanwhile. Raises ApiError where there is none."""
        if (held := self._held.get(name)) is None:
            raise ApiError(f"no session {name!r}", status=404, kind="invalid_request_error")
        held.calls += 1
        try:
            yield held.session
        finally:
            held.calls -= 1
            held.used_s = time.monotonic()

    async def end(self, name: str, *, settled: bool) -> None:
        """Close it; its memory stays for a while unless `settled` (nobody can still write to it)."""
        if (held := self._held.pop(name, None)) is not None:
            await asyncio.shield(self._end(held.session, settled))

    async def close(self) -> None:
        """End all, and wait for nothing: who still writes finds no transport."""
        self._sweeper.cancel()
        for name in tuple(self._held):
            await self.end(name, settled=True)
        for task in self._later:
            task.cancel()
        await asyncio.gather(self._sweeper, *self._later, return_exceptions=True)

    async def _make(self, asked: Open, host: str) -> Session:
        name = f"{self._agent}-{secrets.token_hex(8)}"
        self.taken_bytes += asked.nbytes
        try:
            session = await asyncio.to_thread(Session, name, self._agent, asked, host)
        except BaseException:
            self.taken_bytes -= asked.nbytes
            raise
        self._held[name] = _Held(session, time.monotonic())
        return session

    async def _end(self, session: Session, settled: bool) -> None:
        await asyncio.to_thread(session.close)
        if settled:
            self._free(session)
        else:
            task = asyncio.create_task(self._free_later(session))
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    def _free(self, session: Session) -> None:
        session.memory.close()
        self.taken_bytes -= session.memory.nbytes

    async def _free_later(self, session: Session) -> None:
        try:
            await asyncio.sleep(HOLD_S)
        finally:
            self._free(session)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_S, self._idle_s))
            now_s = time.monotonic()
            for name, held in tuple(self._held.items()):
                if not self.in_use(name) and now_s - held.used_s > self._idle_s:
                    log.info("session %s: unused for %.0f s, closed", name, self._idle_s)
                    await self.end(name, settled=False)


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.4g} MiB"
