"""Records meet outcomes: in any order, in time or not, and no outcome is ever lost."""

import asyncio
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.integrations.log.record import Chosen, DecisionRecord, Outcome, Stages
from kvferry.integrations.sglang.join import Join
from kvferry.integrations.sglang.join_stages import Door
from kvferry.integrations.sglang.join_trip import Sent, Trip
from kvferry.integrations.sglang.plugin import wire

DOOR = Door(0.0, 100.0)
OUTCOME = Outcome(e2e_s=4.0, stages=Stages(queue_s=9.0))


class World:
    """A join over workers p and d (one host) and c; `silent` says of whom nothing is expected, and why."""

    def __init__(self, **options: Any) -> None:
        self.silent: dict[str, str] = {}
        self.written: list[tuple[str, Outcome]] = []
        self.counts: Counter[str] = Counter()
        self.now_s = 1000.0
        hosts = {"p": "h", "d": "h", "c": "other"}
        fleet: Any = SimpleNamespace(
            clock=lambda: self.now_s,
            silence=lambda worker: self.silent.get(worker),
            members={
                name: SimpleNamespace(worker=SimpleNamespace(host=host)) for name, host in hosts.items()
            },
        )
        self.join = Join(fleet, self._write, lambda result: self.counts.update([result]), **options)

    def _write(self, record: DecisionRecord, outcome: Outcome) -> None:
        self.written.append((record.id, outcome))

    def split(self, *rooms: int) -> Trip:
        return self.join.sent(Sent("p", "d", rooms=rooms))

    def alone(self, *rids: str) -> Trip:
        return self.join.sent(Sent("c", "c", rids=rids))

    def end(self, trip: Trip | None, name: str = "a", outcome: Outcome = OUTCOME) -> bool:
        record = DecisionRecord(name, 0.0, Chosen("", "split", "p", "d"), "rule")
        return self.join.ended(trip, record, outcome, DOOR)

    def prefill(self, room: int, **told: Any) -> None:
        self.take("prefill", room=room, transfer=wire.Transfer("nixl", 1000, 8, 1, 2), **told)

    def decode(self, room: int, **told: Any) -> None:
        self.take("decode", room=room, stages=wire.Stages(decode_s=1.0), **told)

    def take(self, role: Any, rid: str = "r", room: int | None = None, **told: Any) -> None:
        worker = {"prefill": "p", "decode": "d"}.get(role, "c")
        self.join.take(worker, wire.RequestRecord("i", role, rid, room, **told))


async def test_records_that_are_there_are_written_with_the_outcome_at_once() -> None:
    world = World()
    trip = world.split(7)
    world.decode(7, retractions=2, at_enqueue=wire.Queues(running=3))
    world.prefill(7, cached_tokens=64, at_enqueue=wire.Queues(waiting=1, used_tokens=5))
    assert world.end(trip)
    ((name, outcome),) = world.written
    assert (name, outcome.moved_bytes, outcome.descriptors) == ("a", 1000, 8)
    assert (outcome.cached_tokens, outcome.retractions, outcome.missing) == (64, 2, {})
    assert outcome.found == {"prefill": {"waiting": 1, "used_tokens": 5}, "decode": {"running": 3}}
    assert outcome.moved is not None
    assert (outcome.moved.transport, outcome.moved.calls) == ("nixl", 2)
    assert world.counts == {"joined": 1}


async def test_an_outcome_waits_for_its_last_record() -> None:
    world = World()
    trip = world.split(7)
    assert not world.end(trip)
    world.prefill(7)
    assert not world.written
    assert world.join.held == 1
    world.decode(7)
    assert [name for name, _ in world.written] == ["a"]
    assert world.join.held == 0
    assert world.counts == {"joined": 1}


async def test_after_a_while_it_is_written_with_what_there_is() -> None:
    world = World(hold_s=0.02)
    world.end(world.split(7))
    world.prefill(7)
    await asyncio.sleep(0.2)
    ((_, outcome),) = world.written
    assert outcome.moved_bytes == 1000
    assert outcome.missing == {"d": "no_record"}
    assert world.counts == {"missed": 1}
    world.decode(7)
    assert world.counts == {"missed": 1, "late": 1}
    assert len(world.written) == 1
    world.prefill(7)  # this one was in time
    assert world.counts["late"] == 1


@pytest.mark.parametrize("why", ["no_plugin", "telemetry_off", "unheard"])
async def test_a_worker_of_whom_nothing_is_expected_is_not_waited_for(why: str) -> None:
    world = World()
    world.silent = {"d": why}
    trip = world.split(7)
    world.prefill(7)
    assert world.end(trip)
    ((_, outcome),) = world.written
    assert outcome.missing == {"d": why}
    assert outcome.moved_bytes == 1000
    world.silent = {"c": why}
    assert world.end(world.alone("r"), "b")
    assert world.written[1] == ("b", Outcome(e2e_s=4.0, stages=Stages(queue_s=9.0), missing={"c": why}))
    assert world.counts == {"joined": 1}


async def test_a_request_that_never_went_out_is_written_as_it_is() -> None:
    world = World()
    assert world.end(None)
    assert world.written == [("a", OUTCOME)]
    assert not world.counts


async def test_samples_without_ids_are_not_waited_for() -> None:
    world = World()
    assert world.end(world.alone())
    assert world.written[0][1].missing == {"c": "unnamed"}


async def test_a_batch_needs_the_records_of_all_its_sequences() -> None:
    world = World()
    trip = world.split(7, 8)
    for room in (8, 7):
        world.prefill(room, cached_tokens=room, stages=wire.Stages(prefill_s=float(room)))
    for room, ended_s in ((8, 90.0), (7, 95.0)):
        assert not world.written
        world.decode(room, ended_s=ended_s, retractions=1)
        if room == 8:
            world.end(trip)
    ((_, outcome),) = world.written
    assert (outcome.moved_bytes, outcome.descriptors, outcome.cached_tokens) == (2000, 16, 15)
    assert outcome.retractions == 2
    assert outcome.stages.prefill_s == 7.0  # of the one that ended last


async def test_half_of_a_batch_is_no_sum() -> None:
    world = World(hold_s=0.01)
    world.end(world.split(7, 8))
    for room in (7, 8):
        world.decode(room)
    world.prefill(7)
    await asyncio.sleep(0.1)
    ((_, outcome),) = world.written
    assert outcome.moved_bytes is None
    assert outcome.missing == {"p": "no_record"}
    assert outcome.stages.decode_s == 1.0


async def test_bytes_are_those_of_all_ranks() -> None:
    world = World()
    trip = world.split(7)
    world.take("prefill", room=7, transfer=wire.Transfer("mooncake", 1000, 8, ranks=4))
    world.decode(7)
    world.end(trip)
    assert (world.written[0][1].moved_bytes, world.written[0][1].descriptors) == (4000, 32)


async def test_a_colocated_request_is_known_by_worker_and_id() -> None:
    world = World()
    trip = world.alone("r1")
    world.take("colocated", "other", wall_s=1.0)
    world.join.take("d", wire.RequestRecord("i", "local", "r1"))
    assert not world.end(trip)
    world.take(
        "colocated",
        "r1",
        cached_tokens=3,
        prompt_tokens=9,
        first_token_s=0.5,
        stages=wire.Stages(queue_s=1.5),
    )
    ((_, outcome),) = world.written
    assert (outcome.stages.queue_s, outcome.cached_tokens, outcome.ttft_s) == (1.5, 3, 0.5)
    assert outcome.moved_bytes is None
    assert outcome.prompt_tokens == 9


async def test_an_id_that_is_longer_than_records_keep_is_known_too() -> None:
    world = World()
    rid = "x" * 100_000
    trip = world.alone(rid)
    world.take("local", rid[: wire.RID_CHARS], stages=wire.Stages(prefill_s=1.0))
    assert world.end(trip)
    assert world.counts == {"joined": 1}


async def test_a_record_that_took_longer_than_the_request_is_of_an_earlier_one() -> None:
    world = World()
    first = world.alone("mine")
    world.now_s += 3.0
    assert not world.end(first, "first")
    second = world.alone("mine")
    assert [name for name, _ in world.written] == ["first"]  # its id is in use again
    world.now_s += 1.0
    world.take("colocated", "mine", wall_s=2.9)
    assert not world.end(second, "second")
    world.take("colocated", "mine", wall_s=0.8, retractions=5)
    assert world.written[1][1].retractions == 5


async def test_only_the_attempt_that_served_counts() -> None:
    world = World()
    given_up = world.split(7)
    world.prefill(7)
    world.join.forget(given_up)
    served = world.split(8)
    world.prefill(7)
    world.decode(7, retractions=9)
    world.prefill(8)
    world.decode(8)
    assert world.end(served)
    assert world.written[0][1].retractions == 0
    assert world.counts == {"joined": 1}


async def test_a_record_that_comes_twice_counts_once() -> None:
    world = World()
    trip = world.split(7)
    for _ in range(2):
        world.prefill(7)
    assert not world.end(trip)
    for _ in range(2):
        world.decode(7)
    assert world.written[0][1].moved_bytes == 1000
    assert len(world.written) == 1
    assert world.counts == {"joined": 1}


async def test_records_of_other_routers_are_passed_over() -> None:
    world = World()
    world.prefill(1)
    world.take("colocated", "x")
    world.take("prefill", room=None)
    assert not world.counts


async def test_the_table_is_bounded() -> None:
    world = World(most_held=3)
    for number in range(10):
        world.end(world.split(number), str(number))
    assert world.join.held == 3
    assert [name for name, _ in world.written] == list("0123456")
    await world.join.drain(0.0)
    assert not world.join._trips


async def test_at_the_end_everything_is_written() -> None:
    world = World()
    for number in range(3):
        world.end(world.split(number), str(number))

    async def come() -> None:
        world.prefill(1)
        world.decode(1)
        world.now_s += 1.0

    async with asyncio.TaskGroup() as group:
        group.create_task(world.join.drain(0.5))
        group.create_task(come())
    assert sorted(name for name, _ in world.written) == ["0", "1", "2"]
    assert world.counts == {"joined": 1, "missed": 2}
    await asyncio.sleep(0.01)
    assert len(world.written) == 3


async def test_records_that_make_no_sense_cost_no_outcome(monkeypatch: Any, caplog: Any) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kvferry.integrations.sglang.join.told", broken)
    world = World()
    trip = world.split(7)
    world.prefill(7)
    world.decode(7)
    assert world.end(trip)
    assert world.written == [("a", OUTCOME)]
    assert "make no sense" in caplog.text


async def test_whatever_happens_every_outcome_is_written_once() -> None:
    draw = random.Random(3)
    world = World(hold_s=0.02, most_held=20)
    trips: list[tuple[str, Trip]] = []
    for number in range(300):
        trip = world.split(number) if draw.random() < 0.7 else world.alone(f"r{number % 50}")
        trips.append((str(number), trip))
        for _ in range(draw.randrange(4)):
            room = draw.randrange(max(0, number - 10), number + 1)
            draw.choice([world.prefill, world.decode])(room)
            world.take("colocated", f"r{draw.randrange(50)}")
        if draw.random() < 0.5 and trips:
            name, one = trips.pop(draw.randrange(len(trips)))
            world.end(one, name)
        if number % 50 == 0:
            await asyncio.sleep(0.03)
    for name, one in trips:
        world.end(one, name)
    await world.join.drain(0.0)
    assert sorted(name for name, _ in world.written) == sorted(map(str, range(300)))
    assert world.counts["joined"] + world.counts["missed"] == 300
    assert world.counts["joined"] > 10
    assert not world.join._trips
