"""Routers learn together: nothing is lost, nothing in the store can hurt, and who is gone is forgotten."""

import asyncio
import json
import logging
import time
from typing import Any

import msgspec
import pytest

from kvferry.integrations.redis import learned as learned_module
from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.redis.health import Health
from kvferry.integrations.redis.learned import DROPPED_S, HALF_LIFE_S, SILENT_S, Learned, share
from kvferry.integrations.redis.learned_board import MOST_BYTES, MOST_TIMES, Place, Told
from kvferry.models.output_lengths import OutputLengths
from kvferry.models.terms.learner import Learner, Move
from kvferry.models.terms.regression import Belief
from kvferry.models.terms.way import Way
from kvferry.policy.link import Link

OTHER = Place("lengths", "other")


class Router:
    """One that learns, and shares it."""

    def __init__(self, store: Any, name: str, interval_s: float = 0.01) -> None:
        self.lengths, self.health = OutputLengths(), Health("test")
        self.learned = Learned(store, [self.lengths], router=name, health=self.health, interval_s=interval_s)

    def learn(self, answers: int, tokens: float = 10.0) -> None:
        for _ in range(answers):
            self.lengths.observe("m", tokens, tenant="t")

    @property
    def answers(self) -> float:
        return self.lengths.answers("m", "t")


def own(answers: int) -> float:
    """What so many answers are worth to the router that saw them."""
    lengths = OutputLengths()
    for _ in range(answers):
        lengths.observe("m", 10.0, tenant="t")
    return lengths.answers("m", "t")


async def put(store: Any, data: bytes | None, when: bytes | None = None, at: float | None = None) -> None:
    """As another router would, or something that is none."""
    seconds, _ = await store.client.time()
    told = when or msgspec.json.encode(Told(float(seconds) if at is None else at, "x", 1))
    await store.client.hset(store.keys.learned_times, OTHER.field, told)
    if data is not None:
        await store.client.hset(store.keys.learned("lengths"), "other", data)


def snapshot(answers: int) -> bytes:
    router = Router(None, "other")
    router.learn(answers)
    return router.lengths.snapshot()


async def test_two_routers_lose_no_sample(store: Any, eventually: Any) -> None:
    one, two = Router(store, "one"), Router(store, "two")
    for router in (one, two):
        router.learned.start()
    for _ in range(20):
        one.learn(1)
        two.learn(2)
        await asyncio.sleep(0.002)
    whole = own(20) + own(40)
    for router in (one, two):
        await eventually(lambda router=router: router.answers == pytest.approx(whole, rel=1e-4))
        assert router.learned.routers == 1
    await asyncio.sleep(0.1)  # hearing it again and again adds nothing
    assert one.answers == pytest.approx(whole, rel=1e-4)
    for router in (one, two):
        await router.learned.close()


async def test_a_third_router_starts_with_what_the_others_know(store: Any) -> None:
    for name in ("one", "two"):
        router = Router(store, name)
        router.learn(15)
        await router.learned.refresh()
    third = Router(store, "three")
    await third.learned.refresh()
    assert third.answers == pytest.approx(2.0 * own(15), rel=1e-4)
    assert third.lengths.expect("m", 4000, "t")[0] < 60.0


async def test_a_restart_goes_on_where_it_stopped(store: Any) -> None:
    before = Router(store, "one")
    before.learned.start()
    before.learn(12)
    await before.learned.close()
    after, other = Router(store, "one"), Router(store, "two")
    after.learn(3)  # before the store has answered
    for router in (after, other):
        await router.learned.refresh()
    whole = own(12) * 0.99**3 + own(3)
    for router in (after, other):
        assert router.answers == pytest.approx(whole, rel=1e-3)
    await after.learned.refresh()
    assert after.answers == pytest.approx(whole, rel=1e-3)


GARBLED = [
    b"",
    b"\x80\x04\x95\x00cos\nsystem\n",
    b"[" * 5000,
    b'{"schema":"kvferry.lengths.v9","places":[]}',
    b'{"schema":"kvferry.lengths.v1","places":[[["m","t",""],[[13,1e9,0,1e9]]]]}',
    b"x" * (MOST_BYTES + 1),
]


@pytest.mark.parametrize("data", GARBLED, ids=[str(i) for i in range(len(GARBLED))])
async def test_what_makes_no_sense_is_passed_over_with_one_line(
    store: Any, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router(store, "one")
    router.learn(5)
    good = Router(store, "good")
    good.learn(5)
    await good.learned.refresh()
    await put(store, data)
    with caplog.at_level(logging.WARNING, "kvferry.learned"):
        for _ in range(3):
            await router.learned.refresh()
    assert router.answers == pytest.approx(2.0 * own(5), rel=1e-4)
    assert len(caplog.records) == (1 if data else 0)
    assert all("'other'" in record.message for record in caplog.records)
    await put(store, snapshot(5), msgspec.json.encode(Told((await store.client.time())[0], "x", 2)))
    await router.learned.refresh()
    assert router.answers == pytest.approx(3.0 * own(5), rel=1e-4)


@pytest.mark.parametrize("time", [b"", b"null", b"[]", b'{"at":1}', b"\xff", b"1" * 5000, b'{"at":1e999}'])
async def test_a_time_that_is_none_hides_nobody_else(store: Any, time: bytes) -> None:
    good = Router(store, "good")
    good.learn(5)
    await good.learned.refresh()
    await put(store, snapshot(5), time or b" ")
    router = Router(store, "one")
    await router.learned.refresh()
    assert router.answers == pytest.approx(own(5), rel=1e-4)


async def test_own_evidence_that_was_garbled_is_replaced(store: Any) -> None:
    first = Router(store, "other")
    first.learn(4)
    await first.learned.refresh()
    await store.client.hset(store.keys.learned("lengths"), "other", b"{}")
    again, reader = Router(store, "other"), Router(store, "reader")
    again.learn(7)
    await again.learned.refresh()
    await reader.learned.refresh()
    assert again.answers == pytest.approx(own(7))
    assert reader.answers == pytest.approx(own(7), rel=1e-4)


async def test_a_store_full_of_strangers_is_not_read(store: Any, caplog: pytest.LogCaptureFixture) -> None:
    await store.client.hset(
        store.keys.learned_times, mapping={f"lengths\x1fr{n}": "{}" for n in range(MOST_TIMES + 1)}
    )
    router = Router(store, "one")
    router.learn(5)
    for _ in range(3):
        await router.learned.refresh()
    assert router.answers == own(5)
    assert len(caplog.records) == 1


async def test_keys_of_another_type_are_said_once_and_stop_nothing(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await store.client.set(store.keys.learned_times, "mine")
    router = Router(store, "one")
    for _ in range(3):
        assert await router.learned._step() == learned_module.REFUSED_S
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert router.health.up
    await store.client.delete(store.keys.learned_times)
    await router.learned.refresh()


def test_who_is_silent_fades() -> None:
    assert share(-5.0) == share(0.0) == share(SILENT_S) == 1.0
    assert share(SILENT_S + HALF_LIFE_S) == 0.5
    shares = [share(age_s) for age_s in range(0, int(DROPPED_S), 60)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 0.0


async def test_a_router_that_is_gone_fades_and_is_dropped_in_the_end(store: Any) -> None:
    now_s, _ = await store.client.time()
    router = Router(store, "one")
    await put(store, snapshot(10), at=now_s - SILENT_S - HALF_LIFE_S)
    await router.learned.refresh()
    assert router.answers == pytest.approx(0.5 * own(10), rel=0.02)
    await put(store, None, at=now_s - 0.9 * DROPPED_S)
    await router.learned.refresh()
    assert router.answers == 0.0
    await put(store, None)  # it was cut off, and is heard of again
    await router.learned.refresh()
    assert router.answers == pytest.approx(own(10), rel=1e-4)
    await put(store, None, at=now_s - DROPPED_S - 60.0)
    await router.learned.refresh()
    assert router.answers == 0.0
    assert not await store.client.hexists(store.keys.learned("lengths"), "other")
    assert not await store.client.hexists(store.keys.learned_times, OTHER.field)


async def test_a_router_whose_field_was_dropped_tells_it_again(store: Any) -> None:
    router, reader = Router(store, "one"), Router(store, "two")
    router.learn(5)
    await router.learned.refresh()
    await store.client.delete(store.keys.learned("lengths"), store.keys.learned_times)
    await router.learned.refresh()
    await reader.learned.refresh()
    assert reader.answers == pytest.approx(own(5), rel=1e-4)


async def test_two_routers_of_one_name_are_told_apart_in_the_log(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = Router(store, "same"), Router(store, "same")
    for router in (one, two, one, two, one):
        router.learn(1)
        await router.learned.refresh()
    assert "another router has this name" in caplog.text


async def test_what_does_not_change_is_not_told_again(store: Any) -> None:
    router = Router(store, "one")
    router.learn(5)
    await router.learned.refresh()
    await store.client.hset(store.keys.learned("lengths"), "one", b"untouched")
    await router.learned.refresh()
    assert await store.client.hget(store.keys.learned("lengths"), "one") == b"untouched"
    router.learn(1)
    await router.learned.refresh()
    told = json.loads(await store.client.hget(store.keys.learned("lengths"), "one"))
    assert told["schema"] == "kvferry.lengths.v1"


async def test_learning_goes_on_while_the_store_is_away(own_server: Any, eventually: Any) -> None:
    stores = [await open_store(own_server.url, timeout_s=0.5) for _ in range(2)]
    one, two = (Router(store, name) for store, name in zip(stores, ("one", "two"), strict=True))
    for router in (one, two):
        router.learned.start()
        router.learn(5)
    await eventually(lambda: one.answers == pytest.approx(2.0 * own(5), rel=1e-4))
    own_server.kill()
    await eventually(lambda: not one.health.up)
    one.learn(5)
    assert one.answers == pytest.approx(own(10) + own(5), rel=1e-4)  # what was heard stays
    own_server.start()
    await eventually(lambda: one.health.up and two.health.up)
    await eventually(lambda: two.answers == pytest.approx(own(10) + own(5), rel=1e-4))
    for router, store in zip((one, two), stores, strict=True):
        await router.learned.close()
        await store.close()


async def test_a_store_that_appears_late_gives_back_what_was_known(own_server: Any, eventually: Any) -> None:
    store = await open_store(own_server.url, timeout_s=0.5)
    before = Router(store, "one")
    before.learn(9)
    await before.learned.refresh()
    own_server.kill()
    after = Router(store, "one")
    after.learned.start()
    after.learn(2)
    await eventually(lambda: not after.health.up)
    own_server.start()
    await eventually(lambda: after.answers > own(10))
    assert after.answers == pytest.approx(own(9) * 0.99**2 + own(2), rel=1e-3)
    await after.learned.close()
    await store.close()


LINK = Link("a", "b", "mooncake", "ib", 1e-3, 1e9, 1e9, 0.0)
WAY = Way(LINK, others=0, new_tokens=2000, chunk_tokens=4096)
SLOW = 1.5  # seconds; the catalogue says 0.5


class Mover:
    """A router that sees moves over LINK."""

    def __init__(self, store: Any, name: str) -> None:
        self.learner = Learner(time.time)
        self.learned = Learned(
            store, [OutputLengths(), self.learner], router=name, health=Health("test"), interval_s=0.01
        )

    def move(self, took_s: float) -> None:
        self.learner.moved(Move(WAY, "direct", 500_000_000, 0.0, busy_s=took_s))

    @property
    def belief(self) -> Belief:
        (found,) = self.learner.transfers.beliefs([LINK], ["direct"], time.time())
        return found


async def test_two_routers_learn_one_link_and_lose_no_move(store: Any, eventually: Any) -> None:
    one, two, alone = Mover(store, "one"), Mover(store, "two"), Mover(store, "alone")
    for mover in (one, two):
        mover.learned.start()
    for _ in range(10):
        for mover, moves in ((one, 1), (two, 2)):
            for _ in range(moves):
                mover.move(SLOW)
                alone.move(SLOW)
            await asyncio.sleep(0.002)
    for mover in (one, two):
        await eventually(lambda mover=mover: mover.belief.count == pytest.approx(30.0, abs=1.0))
        assert mover.belief.mean[1] == pytest.approx(alone.belief.mean[1], rel=0.05)
        assert mover.belief.mean[1] > 2.5
        await mover.learned.close()
    third = Mover(store, "three")  # has seen no move itself
    await third.learned.refresh()
    assert third.belief.mean[1] == pytest.approx(alone.belief.mean[1], rel=0.05)
    again = Mover(store, "one")
    await again.learned.refresh()
    assert again.belief.count == pytest.approx(30.0, abs=1.0)
    await again.learned.refresh()
    assert again.belief.count == pytest.approx(30.0, abs=1.0)


@pytest.mark.parametrize("data", GARBLED[1:], ids=[str(i) for i in range(len(GARBLED) - 1)])
async def test_garbled_evidence_of_links_hurts_nobody(
    store: Any, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    one, good = Mover(store, "one"), Mover(store, "good")
    good.move(SLOW)
    await good.learned.refresh()
    seconds, _ = await store.client.time()
    told = msgspec.json.encode(Told(float(seconds), "x", 1))
    await store.client.hset(store.keys.learned_times, Place("terms", "other").field, told)
    await store.client.hset(store.keys.learned("terms"), "other", data)
    for _ in range(3):
        await one.learned.refresh()
    assert one.belief.count == pytest.approx(1.0, abs=0.1)
    assert len(caplog.records) == 1
