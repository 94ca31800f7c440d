"""The agent that `kvferry probe serve` runs on each host."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from kvferry.integrations.probe.sessions import Sessions
from kvferry.integrations.probe.views import Views, guarded

__all__ = ["running", "serve"]

log = logging.getLogger("kvferry.probe")

BODY_BYTES = 2**20
CLOSE_S = 1.0
LOOPBACK = ("127.", "::1", "localhost")


async def serve(
    host: str = "0.0.0.0",
    port: int = 8600,
    *,
    name: str | None = None,
    advertise: str | None = None,
    token: str | None = None,
    memory_bytes: int = 2**30,
    idle_s: float = 300.0,
    ready: Callable[[int], None] | None = None,
) -> None:
    """Until SIGINT, SIGTERM or cancellation; arguments as of `running`, `ready` is given the port.

    Raises OSError where the port cannot be had.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for sent in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sent, stop.set)
    try:
        async with running(
            host,
            port,
            name=name,
            advertise=advertise,
            token=token,
            memory_bytes=memory_bytes,
            idle_s=idle_s,
        ) as bound:
            if ready is not None:
                ready(bound)
            await stop.wait()
    finally:
        for sent in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(sent)


@asynccontextmanager
async def running(
    host: str = "0.0.0.0",
    port: int = 8600,
    *,
    name: str | None = None,
    advertise: str | None = None,
    token: str | None = None,
    memory_bytes: int = 2**30,
    idle_s: float = 300.0,
) -> AsyncIterator[int]:
    """An agent, serving; yields its port (another where `port` is 0).

    `name`: of this host, by default its own. `advertise`: the address at which other hosts' transports reach
    this one, by default the one at which the probe reached it. `token`: what requests must carry as
    `Authorization: Bearer`. `memory_bytes`: what all sessions together may have; one that nobody uses for
    `idle_s` seconds is closed.
    """
    app = web.Application(client_max_size=BODY_BYTES, middlewares=[guarded(token)])
    sessions = Sessions(name or "probe", memory_bytes, idle_s)
    Views(sessions, name, advertise).add_to(app)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=CLOSE_S)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        if token is None and not host.startswith(LOOPBACK):
            log.warning("no token: whoever reaches %s can use this host's memory and network", host)
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
        await sessions.close()
