import asyncio
import logging

from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.redis.health import Health
from kvferry.integrations.redis.leases import LeaseEntry, Leases, LeaseTotals
from kvferry.integrations.redis.view import View
from kvferry.integrations.redis.workers import PublishedWorker, Workers
from kvferry.policy.worker import Load


async def test_a_view_shows_the_others_and_not_oneself(store, eventually) -> None:
    view = View(store, router="r1", health=Health("s"), interval_s=0.01, workers_every=1)
    assert view.age_s() == float("inf")
    assert view.on("p") == LeaseTotals()
    view.start()
    await Leases(store, "r1").acquire("x", [LeaseEntry("p", 1)], 60)
    await Leases(store, "r2").acquire("x", [LeaseEntry("p", 20)], 60)
    await Leases(store, "r3").acquire("x", [LeaseEntry("p", 300, 1, 300)], 60)
    await eventually(lambda: view.on("p") == LeaseTotals(320, 1, 300))
    await Leases(store, "r2").release("x")
    await eventually(lambda: view.on("p") == LeaseTotals(300, 1, 300))
    await view.close()


async def test_a_lost_store_leaves_the_last_picture_and_its_age(own_server, eventually, caplog) -> None:
    caplog.set_level(logging.INFO)
    store = await open_store(own_server.url)
    health = Health("s")
    view = View(store, router="r1", health=health, interval_s=0.01)
    await Leases(store, "r2").acquire("x", [LeaseEntry("p", 20)], 60)
    view.start()
    await eventually(lambda: view.on("p").prefill_tokens == 20)
    own_server.kill()
    await eventually(lambda: not health.up)
    before = view.age_s()
    await asyncio.sleep(0.05)
    assert view.age_s() >= before + 0.04
    assert view.on("p").prefill_tokens == 20
    assert view.on("p", max_age_s=0.0) == LeaseTotals()
    await asyncio.to_thread(own_server.start)
    await eventually(lambda: health.up)
    assert view.age_s() < before + 20
    await view.close()
    await store.close()
    assert len([r for r in caplog.records if r.name == "kvferry.redis"]) == 2


async def test_published_workers_are_seen_by_another_router_until_they_expire(store, eventually) -> None:
    view = View(store, router="r2", health=Health("s"), interval_s=0.01, workers_every=1)
    view.start()
    a, b = (PublishedWorker(id=name, url=f"http://{name}", by="r1") for name in "ab")
    workers = Workers(store)
    await workers.publish(a, ttl_s=60)
    await workers.publish(b, ttl_s=0.3)
    await workers.publish_loads({"a": Load(running_requests=4)}, by="r1", ttl_s=60)
    await eventually(lambda: view.workers == (a, b) and "a" in view.loads)
    assert view.loads["a"].load.running_requests == 4
    assert view.loads["a"].by == "r1"
    await eventually(lambda: view.workers == (a,))
    await view.close()
