"""Bringing the router up and down: the parts, in the order in which they need each other."""

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from kvferry.integrations.log.jsonl import JsonlWriter
from kvferry.integrations.redis.connection import Store, open_store
from kvferry.integrations.redis.learned import Learned
from kvferry.integrations.redis.paths import PathFollower
from kvferry.integrations.redis.sink import Sink
from kvferry.integrations.redis.telemetry import TelemetryFollower
from kvferry.integrations.redis.url import StoreError
from kvferry.integrations.redis.view import View
from kvferry.integrations.registry import health_metrics
from kvferry.integrations.registry.arms import Arms
from kvferry.integrations.registry.health_watch import HealthWatch
from kvferry.integrations.registry.metrics import ModelMetrics
from kvferry.integrations.registry.running import Models
from kvferry.integrations.sglang.breaker import Breakers
from kvferry.integrations.sglang.ferry import Ferry
from kvferry.integrations.sglang.fleet import Fleet
from kvferry.integrations.sglang.kvevents import KVEvents
from kvferry.integrations.sglang.legs import Legs
from kvferry.integrations.sglang.links import Links
from kvferry.integrations.sglang.poller import Poller
from kvferry.integrations.sglang.publisher import Publisher
from kvferry.integrations.sglang.router import make_app
from kvferry.integrations.sglang.settings import Settings
from kvferry.integrations.sglang.telemetry import Telemetry
from kvferry.integrations.state import log_path, state_dir
from kvferry.models.book import Book
from kvferry.models.paths.probed import Probed
from kvferry.policy.base import make

log = logging.getLogger("kvferry")
BAD_HTTP = (HttpProcessingError, web.RequestPayloadError)
http_log = logging.getLogger("kvferry.http")
# what is no HTTP gets its 400; a traceback of aiohttp's parser for every port scan helps nobody
http_log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], BAD_HTTP)))

# uvicorn closes a connection that has been idle for 5 s: ours must let go of it earlier.
WORKER_KEEPALIVE_S = 3.0
CLOSE_S = 1.0
EVERYWHERE = frozenset(("127.0.0.1", "localhost", "0.0.0.0", "::"))
LAST_RECORDS_S = 0.5  # until the workers' last records have come
OTHERS_FOR_S = 15.0  # leases expire in that time: what was last heard of other routers says no more


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[tuple[Ferry, str]]:
    """The router, serving; yields it and its URL. Raises StoreError, ConfigError, ValueError or OSError,
    each with one clear line, when it cannot start."""
    policy = make(settings.policy, explore=settings.explore)
    links = Links.load(settings.config, settings.path_classes)
    listener = _listen(settings.host, settings.port)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    # several routers of one machine may have one port, on addresses of their own
    where = "" if settings.host in EVERYWHERE else f"/{settings.host}"
    name = settings.name or f"{socket.gethostname()}{where}:{listener.getsockname()[1]}"
    store = await open_store(settings.redis.get_secret_value() if settings.redis else None)
    if store.embedded is None:
        await _tell_store(store)
    file = None if settings.no_log_file else JsonlWriter(settings.log_file or log_path())
    sink = Sink(store, router=name, state_dir=state_dir(), log=file)
    view = View(store, router=name, health=sink.health)
    book = Book(time.monotonic)
    breakers = Breakers(time.monotonic)
    fleet = Fleet(
        time.monotonic,
        links.of,
        book,
        breakers,
        others=lambda: view.others if view.age_s() < OTHERS_FOR_S else {},
        probe_of=links.probe_of,
    )
    key = settings.api_key.get_secret_value() if settings.api_key else None
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=WORKER_KEEPALIVE_S)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        kv_events = KVEvents()
        poller = Poller(
            fleet,
            session,
            settings.targets,
            settings.poll_interval_s,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            kv_events=kv_events,
            store_up=lambda: sink.up,
        )
        publisher = Publisher(store, fleet, sink.health, router=name)
        legs = Legs(session, fleet)
        rng = random.Random(int.from_bytes(os.urandom(16)))
        arms = Arms(settings.safe_share)
        ferry = Ferry(settings, name, policy, fleet, book, legs, poller, sink, time.monotonic, rng, arms=arms)
        ferry.metrics.watch(fleet, sink)
        ferry.models = Models(
            store,
            arms,
            sink.health,
            ModelMetrics(ferry.metrics.registry),
            router=name,
            instance=f"{name}#{os.urandom(6).hex()}",
        )
        lessons = fleet.lessons
        learned = Learned(store, [lessons.lengths, lessons.learner], router=name, health=sink.health)
        ferry.learning.heard = lambda: learned.routers
        health = HealthWatch(store, ferry.learning, sink.health)
        health_metrics.watch(ferry.metrics.registry, ferry.learning)

        def probed(found: list[Probed]) -> None:
            links.take(found)
            fleet.relink()

        paths = PathFollower(store, probed, health=sink.health)
        telemetry = Telemetry(fleet, ferry.join, ferry.metrics.undecodable.inc)
        follower = TelemetryFollower(store, sink.health, telemetry.take)
        runner = web.AppRunner(
            make_app(ferry),
            handler_cancellation=True,
            access_log=None,
            logger=http_log,
            shutdown_timeout=CLOSE_S,
        )
        await runner.setup()
        for part in (sink, view, publisher, poller, follower, learned, health, paths):
            part.start()
        await ferry.models.start()
        try:
            await web.SockSite(runner, listener).start()
            if settings.prometheus_port is not None:
                await web.SockSite(runner, _listen(settings.host, settings.prometheus_port)).start()
            yield ferry, url
        finally:
            await ferry.stop(settings.shutdown_grace_period_secs)
            await runner.cleanup()
            await legs.close()
            await ferry.join.drain(LAST_RECORDS_S)
            await ferry.models.close()
            await learned.close()
            await health.close()
            await paths.close()
            await follower.close()
            await poller.stop()
            await kv_events.close()
            await publisher.close()
            await view.close()
            await sink.close()
            await store.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise OSError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another port"
        ) from error
    listener.setblocking(False)
    return listener


async def _tell_store(store: Store) -> None:
    try:
        async with asyncio.timeout(2.0):
            await store.check()
    except (StoreError, TimeoutError) as error:
        log.warning("%s; routing goes on, the log waits on disk", error or f"store {store.label} is silent")
