import asyncio
import logging
import shutil

import pytest

from kvferry.integrations.redis import telemetry
from kvferry.integrations.redis.connection import Store, open_store
from kvferry.integrations.redis.health import Health
from kvferry.integrations.redis.telemetry import TelemetryFollower


async def add(store: Store, *entries: str, id_: str = "*") -> None:
    for entry in entries:
        await store.client.xadd(store.keys.telemetry, {"data": entry.encode()}, id=id_)


@pytest.fixture
def taken() -> list[str]:
    return []


@pytest.fixture
def follow(taken, eventually):  # type: ignore[no-untyped-def]
    """follow(store): a started follower that has found its place."""

    async def start(store: Store, health: Health | None = None) -> TelemetryFollower:
        found = TelemetryFollower(store, health or Health("s"), lambda data: taken.append(data.decode()))
        found.start()
        await eventually(lambda: found._after is not None)
        return found

    return start


async def test_entries_come_in_order_and_from_the_newest_on(store, follow, taken, eventually) -> None:
    await add(store, "old", "older")
    follower = await follow(store)
    await add(store, *map(str, range(1200)))
    await eventually(lambda: len(taken) >= 1200)
    assert taken == [str(n) for n in range(1200)]
    assert follower.read == 1200
    await follower.close()


async def test_a_stream_that_is_not_there_yet_is_waited_for(store, follow, taken, eventually) -> None:
    follower = await follow(store)
    await add(store, "first")
    await eventually(lambda: taken == ["first"])
    await follower.close()


async def test_after_the_store_was_away_it_goes_on_where_it_stopped(
    own_server, follow, taken, eventually
) -> None:
    store, health = await open_store(own_server.url), Health("s")
    follower = await follow(store, health)
    await add(store, "before")
    await eventually(lambda: taken == ["before"])
    own_server.kill()
    await eventually(lambda: not health.up)
    await asyncio.to_thread(own_server.start)
    writer = await open_store(own_server.url)
    await add(writer, "kept 1", "kept 2")
    await eventually(lambda: taken == ["before", "kept 1", "kept 2"])
    assert health.up
    await follower.close()
    await store.close()
    await writer.close()


async def test_a_stream_that_begins_anew_is_read_from_its_beginning(
    own_server, follow, taken, eventually
) -> None:
    store, health = await open_store(own_server.url), Health("s")
    follower = await follow(store, health)
    await add(store, "before", id_="9999999999999-7")  # by a clock far ahead of its successor's
    await eventually(lambda: taken == ["before"])
    own_server.kill()
    await eventually(lambda: not health.up)
    for path in own_server.dir.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    await asyncio.to_thread(own_server.start)
    writer = await open_store(own_server.url)
    await add(writer, "anew")
    await eventually(lambda: taken == ["before", "anew"])
    await add(writer, "more")
    await eventually(lambda: taken == ["before", "anew", "more"])
    await follower.close()
    await store.close()
    await writer.close()


async def test_a_store_that_refuses_is_not_taken_for_lost(
    store, taken, eventually, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(telemetry, "RETRY_MAX_S", 0.02)
    caplog.set_level(logging.INFO)
    health = Health("s")
    await store.client.set(store.keys.telemetry, "something else")
    follower = TelemetryFollower(store, health, lambda data: taken.append(data.decode()))
    follower.start()
    await eventually(lambda: "telemetry of workers cannot be read" in caplog.text)
    await asyncio.sleep(0.1)
    assert caplog.text.count("telemetry of workers cannot be read") == 1
    assert health.up
    await store.client.delete(store.keys.telemetry)
    await eventually(lambda: follower._after is not None)
    await add(store, "now")
    await eventually(lambda: taken == ["now"])
    await follower.close()


async def test_it_ends_at_once_though_nothing_comes(store, follow) -> None:
    follower = await follow(store)
    async with asyncio.timeout(5.0):
        await follower.close()
