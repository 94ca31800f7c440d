import asyncio

from kvferry.integrations.redis.workers import PublishedWorker, Workers
from kvferry.policy.worker import Load


async def test_a_worker_is_listed_until_its_ttl_ends(store) -> None:
    workers = Workers(store)
    await workers.publish(PublishedWorker(id="a", url="http://a"), ttl_s=0.1)
    await workers.publish(PublishedWorker(id="b", url="http://b", bootstrap_port=7), ttl_s=60)
    assert [w.id for w in await workers.list()] == ["a", "b"]
    await asyncio.sleep(0.2)
    assert await workers.list() == (PublishedWorker(id="b", url="http://b", bootstrap_port=7),)
    # the expired id has left the set too, not only the listing
    assert await store.client.smembers(store.keys.workers) == {b"b"}


async def test_a_heartbeat_keeps_a_worker_and_tells_when_it_came_too_late(store) -> None:
    workers = Workers(store)
    await workers.publish(PublishedWorker(id="a", url="http://a"), ttl_s=0.3)
    for _ in range(5):
        assert await workers.refresh("a", ttl_s=0.3)
        await asyncio.sleep(0.1)
    assert len(await workers.list()) == 1
    await asyncio.sleep(0.5)
    assert not await workers.refresh("a", ttl_s=0.3)
    assert await workers.list() == ()


async def test_a_refresh_heals_a_listing_that_was_tidied_away(store) -> None:
    workers = Workers(store)
    await workers.publish(PublishedWorker(id="a", url="http://a"), ttl_s=60)
    await store.client.srem(store.keys.workers, "a")
    assert await workers.list() == ()
    assert await workers.refresh("a", ttl_s=60)
    assert [w.id for w in await workers.list()] == ["a"]


async def test_removing_a_worker_takes_its_load_with_it(store) -> None:
    workers = Workers(store)
    await workers.publish(PublishedWorker(id="a", url="http://a"), ttl_s=60)
    await workers.publish_loads({"a": Load(running_requests=3)}, by="r1", ttl_s=60)
    assert (await workers.loads(["a", "b"]))["a"].load.running_requests == 3
    assert await workers.remove("a")
    assert not await workers.remove("a")
    assert await workers.list() == ()
    assert await workers.loads(["a"]) == {}


async def test_an_unreadable_entry_hides_no_other(store, caplog) -> None:
    workers = Workers(store)
    await workers.publish(PublishedWorker(id="a", url="http://a"), ttl_s=60)
    await workers.publish(PublishedWorker(id="b", url="http://b"), ttl_s=60)
    await store.client.set(store.keys.worker("a"), b'{"id": 3}')
    assert [w.id for w in await workers.list()] == ["b"]
    assert "unreadable PublishedWorker" in caplog.text
