"""What a destination does with sources that do what they should, and with those that do not."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
import torch
from hand_source import WAIT_S, HandSource, random_kv

from kvferry.integrations.handoff import messages as m
from kvferry.integrations.handoff import rooms, scattering
from kvferry.integrations.handoff.arrival import Arrival
from kvferry.integrations.handoff.channel import SEND_TIMEOUT_S
from kvferry.integrations.handoff.destination import Destination
from kvferry.integrations.handoff.errors import Corrupt, GivenUp
from kvferry.integrations.transports.errors import (
    Cancelled,
    DeadlinePassed,
    PeerGone,
    Refused,
    TransportError,
)
from kvferry.integrations.transports.kernels.convert import convert
from kvferry.integrations.transports.kernels.staged import gather
from kvferry.integrations.transports.local import Local
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec
from kvferry.policy.layout import LayoutOrder

HEADS, LAYERS, TOKENS = 4, 3, 21
PAGES = 16
AT = Place.of([9, 2, 14, 5, 11, 7, 3], first=3)
USED = frozenset({9, 2, 14, 5, 11, 7})
QUARANTINE_S = 30.0
ROOM = 77


def worker(tp: int, dtype: str = "bfloat16", page_size: int = 4) -> tuple[PoolSpec, ...]:
    each = HEADS // tp
    return tuple(
        PoolSpec(LAYERS, each, 8, PAGES, page_size, dtype, LayoutOrder.LAYER_FIRST, rank * each)
        for rank in range(tp)
    )


class Stage:
    """A destination of two ranks, its pools, and the sources that a test opens."""

    def __init__(self, dtype: str = "bfloat16", **options: Any) -> None:
        self.now_s = 1000.0
        self.worker = worker(2, dtype)
        self.pools = {rank: KVPool(spec) for rank, spec in enumerate(self.worker)}
        self.destination = Destination(
            Local("destination"),
            self.worker,
            self.pools,
            quarantine_s=QUARANTINE_S,
            clock=lambda: self.now_s,
            **options,
        )
        self.sources = ExitStack()

    def source(self, tp: int = 2, dtype: str = "bfloat16", **options: Any) -> HandSource:
        made = HandSource(self.destination.port, worker(tp, dtype, page_size=8), **options)
        self.sources.callback(made.close)
        return made

    def expect(self, room: int = ROOM, **options: Any) -> Arrival:
        return self.destination.expect(room, AT, TOKENS, **options)

    def started(self, source: HandSource, room: int = ROOM, **options: Any) -> tuple[Arrival, int, m.Go]:
        arrival = self.expect(room, **options)
        move = source.begin(room, TOKENS)
        return arrival, move, source.hear(m.Go)

    def held(self) -> torch.Tensor:
        """The whole model's KV at the room's place."""
        return torch.cat([gather(pool, AT, TOKENS) for pool in self.pools.values()], dim=3)

    def pages(self) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
        """Free, readable, quarantined."""
        there = self.destination
        return there.free_pages(), there.readable(), there.quarantined()


@pytest.fixture
def stage() -> Iterator[Stage]:
    yield from staged_by()


def staged_by(**options: Any) -> Iterator[Stage]:
    made = Stage(**options)
    yield made
    made.sources.close()
    made.destination.close()


ALL = frozenset(range(PAGES))
FREE = (ALL, frozenset(), frozenset())
ARRIVING = (ALL - USED, frozenset(), frozenset())
READABLE = (ALL - USED, USED, frozenset())
QUARANTINED = (ALL - USED, frozenset(), USED)


def until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def failure(arrival: Arrival, kind: type[TransportError], match: str = ".") -> TransportError:
    with pytest.raises(kind, match=match) as raised:
        arrival.wait(WAIT_S)
    assert type(raised.value) is kind
    return raised.value


@pytest.mark.parametrize("verify", [False, True])
def test_piece_by_piece(stage, verify):
    kv = random_kv(stage.worker[0], HEADS, TOKENS)
    source = stage.source(tp=4)
    arrival, move, go = stage.started(source, verify=verify)
    assert go == m.Go(move, AT.pages[:6].tolist(), AT.first, (), verify)
    routes = source.routes(stage.worker)
    assert len(routes) == 4
    for route in routes:
        source.land(move, route, go, kv)
    assert source.hears_nothing()
    assert not arrival.over
    assert stage.pages() == ARRIVING
    source.say(m.End(move))
    assert source.hear(m.Complete).move == move
    arrived = arrival.wait(WAIT_S)
    assert stage.pages() == READABLE
    assert torch.equal(stage.held(), kv)
    assert (arrived.room, arrived.pages, arrived.tokens) == (ROOM, (9, 2, 14, 5, 11, 7), TOKENS)
    assert (arrived.sources, arrived.verified, dict(arrived.scales)) == (("hand",), verify, {})
    assert (arrived.verify_s > 0) == verify
    assert arrived.scatter_s == arrived.convert_s == 0
    stage.destination.release(arrived.pages)
    assert stage.pages() == FREE


@pytest.mark.parametrize("verify", [False, True])
def test_staged_in_slots(stage, verify):
    kv = random_kv(stage.worker[0], HEADS, TOKENS)
    source = stage.source(tp=1)
    arrival, move, go = stage.started(source, verify=verify)
    ticket = 0
    for layers in (range(2), range(2, LAYERS)):
        for route in source.routes(stage.worker):
            source.say(source.stage(move, route, go, kv, layers, ticket))
            done = source.hear(m.Scattered)
            assert (done.move, done.ticket, done.convert_s) == (move, ticket, pytest.approx(0, abs=0.01))
            assert done.scatter_s > 0
            assert (done.verify_s > 0) == verify
            ticket += 1
    assert stage.pages() == ARRIVING
    source.say(m.End(move))
    source.hear(m.Complete)
    arrived = arrival.wait(WAIT_S)
    assert torch.equal(stage.held(), kv)
    assert arrived.scatter_s > 0
    assert stage.pages() == READABLE


CUTS = {
    "at pages": (range(5), range(5, 13), range(13, 21)),
    "anywhere": (range(1), range(1, 10), range(10, 21)),
    "token by token": tuple(range(token, token + 1) for token in range(TOKENS)),
}


@pytest.mark.parametrize("cut", CUTS)
def test_staged_some_tokens_at_a_time(stage, cut):
    """Other layers may be further on; a page that two portions share has two checksums."""
    kv, ticket = random_kv(stage.worker[0], HEADS, TOKENS), 0
    source = stage.source(tp=1)
    arrival, move, go = stage.started(source, verify=True)
    for route in source.routes(stage.worker):
        for layers in (range(1), range(1, LAYERS)):
            for tokens in CUTS[cut]:
                source.say(source.stage(move, route, go, kv, layers, ticket, tokens))
                assert source.hear(m.Scattered).ticket == ticket
                ticket += 1
    assert stage.pages() == ARRIVING
    source.say(m.End(move))
    source.hear(m.Complete)
    assert arrival.wait(WAIT_S).verified
    assert torch.equal(stage.held(), kv)


def test_the_page_of_a_portion_that_changed_on_the_wire(stage):
    source, kv = stage.source(tp=1), random_kv(stage.worker[0], HEADS, TOKENS)
    arrival, move, go = stage.started(source, verify=True)
    route = source.routes(stage.worker)[0]
    source.say(source.stage(move, route, go, kv, range(LAYERS), 0, range(6)))
    source.hear(m.Scattered)
    told = source.stage(move, route, go, kv, range(LAYERS), 1, range(6, 16))
    wrong = bytes([told.checksums[0] ^ 1]) + told.checksums[1:]
    source.say(msgspec.structs.replace(told, checksums=wrong))
    assert "page 14" in source.hear(m.No).reason  # of whose tokens one came with the portion before
    failure(arrival, Corrupt, "page 14")


def test_what_lies_around_the_tokens_is_left_alone(stage):
    for pool in stage.pools.values():
        for tensor in pool.tensors:
            tensor.fill_(-7.0)
    source = stage.source()
    kv = random_kv(stage.worker[0], HEADS, TOKENS)
    arrival, move, go = stage.started(source)
    for ticket, route in enumerate(source.routes(stage.worker)):
        source.say(source.stage(move, route, go, kv, range(LAYERS), ticket))
        source.hear(m.Scattered)
    source.say(m.End(move))
    arrival.wait(WAIT_S)
    for pool in stage.pools.values():
        for tensor in pool.tensors:
            written = (tensor != -7.0).any(dim=-1).any(dim=-1)
            assert int(written.sum()) == TOKENS


def test_a_source_that_comes_first_waits_for_its_room(stage):
    source = stage.source()
    move, other = source.begin(ROOM, TOKENS), source.begin(ROOM + 1, TOKENS)
    assert source.hears_nothing()
    stage.expect()
    assert source.hear(m.Go).move == move
    source.say(m.Failed(other, "late", True))
    source.say(m.Want(move, 0))
    source.hear(m.Slot)  # by now the other one was heard, and waits no more
    stage.destination.expect(ROOM + 1, Place.of(range(0, 1)), 2)
    assert source.hears_nothing()


def test_a_source_that_came_first_and_is_lost_later(stage):
    source = stage.source()
    source.begin(ROOM, TOKENS)
    assert source.hears_nothing()
    arrival = stage.expect()
    source.hear(m.Go)
    source.close()
    failure(arrival, PeerGone)


def test_moves_that_wait_for_their_rooms_are_counted(stage, monkeypatch):
    monkeypatch.setattr(rooms, "MOST_PARKED", 2)
    source = stage.source()
    first, _, third = (source.begin(ROOM + number, TOKENS) for number in range(3))
    assert source.hear(m.No) == m.No(third, "2 moves wait for their rooms already")
    source.say(m.Failed(first, "late", True))
    source.begin(ROOM + 2, TOKENS)
    assert source.hears_nothing()


def test_ranks_of_a_worker_in_two_processes(stage):
    kv = random_kv(stage.worker[0], HEADS, TOKENS)
    sources = [stage.source(tp=4, here=here) for here in ((0, 3), (1, 2))]
    arrival = stage.expect()
    for source in sources:
        move = source.begin(ROOM, TOKENS)
        go = source.hear(m.Go)
        assert not arrival.over
        for route in source.routes(stage.worker):
            source.land(move, route, go, kv)
        source.say(m.End(move))
        source.hear(m.Complete)
    assert len(arrival.wait(WAIT_S).sources) == 2
    assert torch.equal(stage.held(), kv)


def test_one_process_of_two_fails(stage):
    done, fails = stage.source(tp=2, here=(0,)), stage.source(tp=2, here=(1,))
    arrival, move, go = stage.started(done)
    for route in done.routes(stage.worker):
        done.land(move, route, go, random_kv(stage.worker[0], HEADS, TOKENS))
    done.say(m.End(move))
    done.hear(m.Complete)
    move = fails.begin(ROOM, TOKENS)
    fails.hear(m.Go)
    assert stage.pages() == ARRIVING
    fails.say(m.Failed(move, "out of luck", True))
    error = failure(arrival, GivenUp, "out of luck")
    assert not error.may_still_write
    assert stage.pages() == FREE


def test_of_two_processes_the_one_that_goes_on_is_told(stage):
    fails, goes_on = stage.source(tp=2, here=(0,)), stage.source(tp=2, here=(1,))
    arrival, move, _ = stage.started(fails)
    other = goes_on.begin(ROOM, TOKENS)
    goes_on.hear(m.Go)
    fails.say(m.Failed(move, "out of luck", False))
    assert goes_on.hear(m.Cancel) == m.Cancel(other, str(failure(arrival, GivenUp)))
    fails.say(m.Drained(move))
    goes_on.say(m.Failed(other, "cancelled", False))
    goes_on.say(m.Want(other, 0))  # nobody listens to that any more
    assert goes_on.hears_nothing()
    assert stage.pages() == QUARANTINED
    goes_on.say(m.Drained(other))
    until(lambda: stage.pages() == FREE)


def cancelled(stage: Stage, arrival: Arrival) -> TransportError:
    arrival.cancel()
    return failure(arrival, Cancelled)


def late(stage: Stage, arrival: Arrival) -> TransportError:
    with pytest.raises(DeadlinePassed, match=r"after 0\.05 s") as raised:
        arrival.wait(0.05)
    return raised.value


@pytest.mark.parametrize("give_up", [cancelled, late])
@pytest.mark.parametrize("drained", ["at once", "later", "never"])
def test_given_up_here(stage, give_up, drained):
    source = stage.source()
    arrival, move, _ = stage.started(source)
    assert give_up(stage, arrival).may_still_write
    assert source.hear(m.Cancel).move == move
    assert stage.pages() == QUARANTINED
    with pytest.raises(Refused, match="page 9 is quarantined"):
        stage.expect(ROOM + 1)
    if drained != "never":
        source.say(m.Failed(move, "cancelled", drained == "at once"))
    if drained == "later":
        assert source.hears_nothing()
        assert stage.pages() == QUARANTINED
        source.say(m.Drained(move))
    if drained == "never":
        stage.now_s += QUARANTINE_S - 0.1
        assert stage.pages() == QUARANTINED
        stage.now_s += 0.2
    until(lambda: stage.pages() == FREE)
    late_comer = source.begin(ROOM, TOKENS)
    refused = source.hear(m.No)
    assert refused.move == late_comer
    assert "room 77 failed" in refused.reason
    stage.expect()  # the room's next try
    assert source.begin(ROOM, TOKENS) == source.hear(m.Go).move


@pytest.mark.parametrize("give_up", [cancelled, late])
def test_given_up_before_a_source_came(stage, give_up):
    assert not give_up(stage, stage.expect()).may_still_write
    assert stage.pages() == FREE


@pytest.mark.parametrize("drained", [True, False])
def test_given_up_by_the_source(stage, drained):
    source = stage.source()
    arrival, move, _ = stage.started(source)
    source.say(m.Failed(move, "out of luck", drained))
    assert failure(arrival, GivenUp, "hand: out of luck").may_still_write != drained
    assert stage.pages() == (FREE if drained else QUARANTINED)
    source.say(m.Drained(move))
    until(lambda: stage.pages() == FREE)
    assert source.hears_nothing()


def test_a_connection_that_is_lost(stage):
    source, other = stage.source(), stage.source()
    arrival, _, _ = stage.started(source)
    source.begin(ROOM + 1, TOKENS)  # waits for its room
    source.close()
    assert failure(arrival, PeerGone).may_still_write
    assert stage.pages() == QUARANTINED
    stage.now_s += QUARANTINE_S
    assert stage.pages() == FREE
    again, move, _ = stage.started(other, ROOM + 1)
    assert not again.over
    other.say(m.Failed(move, "", True))


Wrong = Callable[[Stage, HandSource, int, m.Go], None]


def landed(**changed: Any) -> Wrong:
    def wrong(stage: Stage, source: HandSource, move: int, go: m.Go) -> None:
        source.say(msgspec.structs.replace(m.Landed(move, 0, 0, b"\0" * 48), **changed))

    return wrong


def staged(**changed: Any) -> Wrong:
    def wrong(stage: Stage, source: HandSource, move: int, go: m.Go) -> None:
        source.say(m.Want(move, 5))
        source.hear(m.Slot)
        told = m.Staged(move, 5, 0, 0, 0, LAYERS, 0, TOKENS, "bfloat16", b"\0" * 48)
        source.say(msgspec.structs.replace(told, **changed))

    return wrong


def said(*messages: Callable[[int], m.Message]) -> Wrong:
    def wrong(stage: Stage, source: HandSource, move: int, go: m.Go) -> None:
        for message in messages:
            source.say(message(move))

    return wrong


def twice(stage: Stage, source: HandSource, move: int, go: m.Go) -> None:
    route = source.routes(stage.worker)[0]
    for _ in range(2):
        source.land(move, route, go, random_kv(stage.worker[0], HEADS, TOKENS))


def a_layer_twice(stage: Stage, source: HandSource, move: int, go: m.Go) -> None:
    route, kv = source.routes(stage.worker)[0], random_kv(stage.worker[0], HEADS, TOKENS)
    source.say(source.stage(move, route, go, kv, range(2), 0))
    source.hear(m.Scattered)
    source.say(source.stage(move, route, go, kv, range(1, 3), 1))


def a_layer_less(stage: Stage, source: HandSource, move: int, go: m.Go) -> None:
    first, second = source.routes(stage.worker)
    kv = random_kv(stage.worker[0], HEADS, TOKENS)
    source.land(move, first, go, kv)
    source.say(source.stage(move, second, go, kv, range(2), 0))
    source.hear(m.Scattered)
    source.say(m.End(move))


def tokens_staged(*some: tuple[range, range], ends: bool = False) -> Wrong:
    """Layers and tokens of them, one after the other."""

    def wrong(stage: Stage, source: HandSource, move: int, go: m.Go) -> None:
        route, kv = source.routes(stage.worker)[0], random_kv(stage.worker[0], HEADS, TOKENS)
        for ticket, (layers, tokens) in enumerate(some):
            if ticket:
                source.hear(m.Scattered)
            source.say(source.stage(move, route, go, kv, layers, ticket, tokens))
        if ends:
            source.hear(m.Scattered)
            source.say(m.End(move))

    return wrong


def landed_after_tokens(stage: Stage, source: HandSource, move: int, go: m.Go) -> None:
    tokens_staged((range(1), range(8)))(stage, source, move, go)
    source.hear(m.Scattered)
    source.say(m.Landed(move, 0, 0, b"\0" * 48))


def anothers_slot(stage: Stage, source: HandSource, move: int, go: m.Go) -> None:
    other = stage.source()
    stage.destination.expect(ROOM + 5, Place.of([0, 1]), 5)
    theirs = other.begin(ROOM + 5, 5)
    other.hear(m.Go)
    other.say(m.Want(theirs, 5))
    other.hear(m.Slot)
    source.say(m.Staged(move, 5, 0, 0, 0, LAYERS, 0, TOKENS, "bfloat16", b"\0" * 48))


WRONG: dict[str, tuple[Wrong, str]] = {
    "a pair that is none": (landed(dst_rank=1), "rank 0 has nothing for rank 1"),
    "a rank that is none": (landed(src_rank=9), "rank 9 has nothing"),
    "a negative rank": (landed(src_rank=-1), "rank -1 has nothing"),
    "landed twice": (twice, "came twice"),
    "too few checksums": (landed(checksums=b"\0" * 40), "40 bytes of checksums for 6 pages"),
    "no checksums": (landed(checksums=b""), "0 bytes of checksums for 6 pages"),
    "scales of bfloat16": (landed(scales=b"\0" * 4 * LAYERS * 2 * 2), "scales of bfloat16"),
    "scales of another size": (landed(scales=b"\0" * 12), "12 bytes of scales"),
    "staged without a slot": (staged(ticket=6), "ticket 6 has no slot"),
    "staged in the slot of another": (anothers_slot, "ticket 5 has no slot"),
    "staged a pair that is none": (staged(src_rank=1), "rank 1 has nothing for rank 0"),
    "layers before the first": (staged(first_layer=-1), "layers -1 to 1 of 3"),
    "layers beyond the last": (staged(first_layer=1), "layers 1 to 3 of 3"),
    "no layers": (staged(layers=0), "layers 0 to -1 of 3"),
    "layers beyond int64": (staged(first_layer=2**63, layers=2**62), "of 3"),
    "a layer twice": (a_layer_twice, "token 0 of layer 1 of rank 0 to 0 came twice"),
    "no tokens": (staged(tokens=0), "tokens 0 to -1 of 21"),
    "tokens before the first": (staged(first_token=-1), "tokens -1 to 19 of 21"),
    "tokens beyond the last": (staged(first_token=1), "tokens 1 to 21 of 21"),
    "tokens beyond int64": (staged(first_token=2**63, tokens=2**62), "of 21"),
    "tokens that are not the first": (
        staged(first_token=8, tokens=4),
        "token 8 of layer 0 of rank 0 to 0 came before token 0",
    ),
    "tokens twice": (
        tokens_staged((range(3), range(8)), (range(1, 2), range(7, 12))),
        "token 7 of layer 1 of rank 0 to 0 came twice",
    ),
    "tokens between others left out": (
        tokens_staged((range(3), range(8)), (range(3), range(9, 21))),
        "token 9 of layer 0 of rank 0 to 0 came before token 8",
    ),
    "tokens of which one layer had none before": (
        tokens_staged((range(2), range(8)), (range(3), range(8, 21))),
        "token 8 of layer 2 of rank 0 to 0 came before token 0",
    ),
    "landed after some tokens": (landed_after_tokens, "token 0 of layer 0 of rank 0 to 0 came twice"),
    "ended without some tokens": (
        tokens_staged((range(3), range(8)), (range(2), range(8, 21)), ends=True),
        "ended without token 8 of layer 2 of rank 0 to 0",
    ),
    "checksums of other pages than the tokens have": (
        staged(tokens=5),
        "48 bytes of checksums for 2 pages",
    ),
    "another dtype": (staged(wire_dtype="float32"), "staged in float32"),
    "a dtype that is none": (staged(wire_dtype="x" * 100), "staged in xxx"),
    "staged with scales": (staged(scales=b"\0" * 4 * LAYERS * 2 * 2), "scales of bfloat16"),
    "staged with too few checksums": (staged(checksums=b"\0"), "1 bytes of checksums for 6 pages"),
    "ended without anything": (said(m.End), "ended without token 0 of layer 0 of rank 0 to 0"),
    "ended without a layer": (a_layer_less, "ended without token 0 of layer 2 of rank 1 to 1"),
    "drained what goes on": (said(m.Drained), "had not failed"),
    "began twice": (said(lambda move: m.Begin(move, ROOM + 1, 1, False)), "began twice"),
    "a ticket twice": (said(lambda move: m.Want(move, 1), lambda move: m.Want(move, 1)), "is in use"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_source_that_does_what_it_must_not(stage, name):
    wrong, reason = WRONG[name]
    source = stage.source()
    arrival, move, go = stage.started(source, verify=True)
    wrong(stage, source, move, go)
    heard: Any = source.channel.receive(WAIT_S)
    if isinstance(heard, m.Slot):  # of a ticket that was asked for twice
        heard = source.channel.receive(WAIT_S)
    assert isinstance(heard, m.No), heard
    assert heard.move == move
    assert reason in heard.reason
    assert failure(arrival, Refused).may_still_write
    assert stage.pages() == QUARANTINED or name == "staged in the slot of another"
    assert not stage.pages()[1]
    source.say(m.End(move))  # of a move that is over here: not worth an answer
    source.say(m.Failed(move, "told so", True))
    until(lambda: not stage.pages()[2])
    # Its connection and all slots are as good as before.
    kv = random_kv(stage.worker[0], HEADS, TOKENS, seed=2)
    again, move, go = stage.started(source, ROOM + 2)
    for ticket, route in enumerate(source.routes(stage.worker)):
        source.say(source.stage(move, route, go, kv, range(LAYERS), ticket))
        source.hear(m.Scattered)
    source.say(m.End(move))
    source.hear(m.Complete)
    again.wait(WAIT_S)
    assert torch.equal(stage.held(), kv)


def test_more_bytes_than_a_slot_holds():
    for stage in staged_by(slot_bytes=2000):
        source = stage.source()
        assert source.welcome.slot_bytes == 2048
        arrival, move, _ = stage.started(source)
        source.say(m.Want(move, 0))
        source.hear(m.Slot)
        source.say(m.Staged(move, 0, 0, 0, 0, LAYERS, 0, TOKENS, "bfloat16"))
        assert "4032 bytes staged in slots of 2048" in source.hear(m.No).reason
        failure(arrival, Refused)


@pytest.mark.parametrize("tokens", [0, -1, TOKENS - 1, TOKENS + 1])
def test_another_number_of_tokens(stage, tokens):
    source = stage.source()
    arrival = stage.expect()
    move = source.begin(ROOM, tokens)
    refused = source.hear(m.No)
    assert refused.move == move
    assert f"{tokens} tokens for room 77, which expects 21" in refused.reason
    assert not failure(arrival, Refused).may_still_write
    assert stage.pages() == FREE


@pytest.mark.parametrize("message", [m.Want(5, 0), m.Landed(5, 0, 0), m.End(5), m.Begin(-3, 1, 1, False)])
def test_a_move_that_is_none(stage, message):
    source = stage.source()
    source.say(message)
    assert source.hear(m.No).move == message.move
    for ignored in (m.Drained(5), m.Failed(5, "", False)):
        source.say(ignored)
    assert source.hears_nothing()
    _, move, go = stage.started(source)
    assert go.move == move


def test_a_move_that_did_not_wait_for_its_room(stage):
    source = stage.source()
    move = source.begin(ROOM, TOKENS)
    source.say(m.End(move))
    assert source.hear(m.No).move == move
    stage.expect()
    assert source.hears_nothing()


def test_a_second_source_of_a_room_does_not_harm_the_first(stage):
    kv = random_kv(stage.worker[0], HEADS, TOKENS)
    source, same, another = stage.source(), stage.source(), stage.source(tp=4, here=(3,))
    arrival, move, go = stage.started(source)
    for other in (same, another, source):
        refused = other.begin(ROOM, TOKENS)
        assert other.hear(m.No) == m.No(refused, "room 77 has another source")
    for route in source.routes(stage.worker):
        source.land(move, route, go, kv)
    source.say(m.End(move))
    arrival.wait(WAIT_S)
    assert torch.equal(stage.held(), kv)
    late_comer = source.begin(ROOM, TOKENS)
    source.hear(m.Complete)
    assert source.hear(m.No) == m.No(late_comer, "room 77 has arrived")


def test_a_page_that_landed_wrong(stage):
    source = stage.source()
    arrival, move, go = stage.started(source, verify=True)
    kv = random_kv(stage.worker[0], HEADS, TOKENS)
    route = source.routes(stage.worker)[1]
    damaged = kv[:, :, :, 2:4].clone()
    damaged[2, 1, 9, 1, 3] += 1  # token 12 of the pages: the fourth
    source.write_pool(route, go, damaged)
    sums = scattering.page_checksums(kv[:, :, :, 2:4].contiguous(), go.first, 4)
    source.say(m.Landed(move, 1, 1, sums))
    assert "page 5: its checksum is not the source's (rank 1 to 1)" in source.hear(m.No).reason
    error = failure(arrival, Corrupt)
    assert isinstance(error, Corrupt)
    assert (error.page, error.may_still_write) == (5, True)
    assert stage.pages() == QUARANTINED


def test_bytes_that_changed_on_the_wire_are_not_scattered(stage):
    source = stage.source()
    arrival, move, go = stage.started(source, verify=True)
    kv = random_kv(stage.worker[0], HEADS, TOKENS)
    route = source.routes(stage.worker)[0]
    told = source.stage(move, route, go, kv, range(LAYERS), 0)
    damaged = kv[:, :, :, 0:2].clone()
    damaged[0, 0, 20, 0, 0] += 1
    source.write_slot(0, damaged)
    source.say(told)
    assert "page 7: its checksum on the wire" in source.hear(m.No).reason
    assert isinstance(failure(arrival, Corrupt), Corrupt)
    assert not stage.held().any()


def test_a_pool_that_does_not_keep_what_was_written(stage, monkeypatch):
    def forgetful(part: torch.Tensor, *given: Any, **named: Any) -> None:
        part = part.clone()
        part[0, 1, 1] += 1  # token 4 of the pages: the second
        scatter(part, *given, **named)

    scatter = scattering.scatter
    source = stage.source()
    arrival, move, go = stage.started(source, verify=True)
    kv = random_kv(stage.worker[0], HEADS, TOKENS)
    told = source.stage(move, source.routes(stage.worker)[0], go, kv, range(LAYERS), 0)
    monkeypatch.setattr(scattering, "scatter", forgetful)
    source.say(told)
    assert "page 2: it does not read as it was written" in source.hear(m.No).reason
    failure(arrival, Corrupt)


def test_the_source_asks_for_verifying(stage):
    source = stage.source()
    stage.expect()
    source.begin(ROOM, TOKENS, verify=True)
    assert source.hear(m.Go).verify


def test_a_mistake_of_ours_fails_the_move_and_not_the_thread(stage, monkeypatch):
    def broken(*given: Any, **named: Any) -> None:
        raise RuntimeError("no such thing")

    source = stage.source()
    arrival, move, go = stage.started(source)
    kv, route = random_kv(stage.worker[0], HEADS, TOKENS), source.routes(stage.worker)[0]
    told = source.stage(move, route, go, kv, range(LAYERS), 0)
    with monkeypatch.context() as patched:
        patched.setattr(scattering, "scatter", broken)
        source.say(told)
        assert "RuntimeError: no such thing" in source.hear(m.No).reason
    failure(arrival, TransportError, "no such thing")
    source.say(m.Failed(move, "", True))
    until(lambda: stage.pages() == FREE)
    _, move, go = stage.started(source)
    source.say(source.stage(move, route, go, kv, range(LAYERS), 0))
    source.hear(m.Scattered)


@pytest.fixture
def held_scatter(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """(A scatter has begun, it may go on)."""
    begun, go_on = threading.Event(), threading.Event()
    scatter = scattering.scatter

    def slow(*given: Any, **named: Any) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)
        scatter(*given, **named)

    monkeypatch.setattr(scattering, "scatter", slow)
    yield begun, go_on
    go_on.set()


def test_pages_stay_in_quarantine_while_they_are_scattered_into_here(stage, held_scatter):
    begun, go_on = held_scatter
    source = stage.source()
    arrival, move, go = stage.started(source)
    kv = random_kv(stage.worker[0], HEADS, TOKENS)
    source.say(source.stage(move, source.routes(stage.worker)[0], go, kv, range(LAYERS), 0))
    assert begun.wait(WAIT_S)
    arrival.cancel()
    stage.now_s += 10 * QUARANTINE_S
    assert stage.pages() == QUARANTINED
    go_on.set()
    until(lambda: stage.pages() == FREE)


def test_slots_go_to_who_came_first_over_all_connections():
    for stage in staged_by(slots=2):
        first, second = stage.source(here=(0,)), stage.source(here=(1,))
        _, move, go = stage.started(first)
        other = second.begin(ROOM, TOKENS)
        second.hear(m.Go)
        kv = random_kv(stage.worker[0], HEADS, TOKENS)
        told = first.stage(move, first.routes(stage.worker)[0], go, kv, range(1), 0)
        first.say(m.Want(move, 1))
        slot = first.hear(m.Slot)
        second.say(m.Want(other, 0))
        assert second.hears_nothing()
        first.say(m.Want(move, 2))
        assert first.hears_nothing()
        first.say(told)
        assert second.hear(m.Slot) == m.Slot(other, 0, 1 - slot.slot)
        first.hear(m.Scattered)
        assert first.hears_nothing()


@pytest.mark.parametrize("how", ["drained", "timed out"])
def test_a_slot_of_a_failed_move_is_not_given_out_early(how):
    for stage in staged_by(slots=1):
        fails, waits = stage.source(here=(0,)), stage.source()
        _, move, _ = stage.started(fails)
        fails.say(m.Want(move, 0))
        fails.hear(m.Slot)
        stage.destination.expect(ROOM + 1, Place.of([0, 1]), 5)
        other = waits.begin(ROOM + 1, 5)
        waits.hear(m.Go)
        fails.say(m.Failed(move, "", False))
        waits.say(m.Want(other, 0))
        assert waits.hears_nothing(0.7)
        if how == "drained":
            fails.say(m.Drained(move))
        else:
            stage.now_s += QUARANTINE_S
        assert waits.hear(m.Slot) == m.Slot(other, 0, 0)


def test_a_slot_that_was_leased_and_not_used_comes_back():
    for stage in staged_by(slots=1):
        source = stage.source()
        arrival, move, go = stage.started(source)
        source.say(m.Want(move, 0))
        source.hear(m.Slot)
        for route in source.routes(stage.worker):
            source.land(move, route, go, random_kv(stage.worker[0], HEADS, TOKENS))
        source.say(m.End(move))
        source.hear(m.Complete)
        arrival.wait(WAIT_S)
        stage.now_s += QUARANTINE_S
        stage.destination.expect(ROOM + 1, Place.of([0, 1]), 5)
        other = source.begin(ROOM + 1, 5)
        source.hear(m.Go)
        source.say(m.Want(other, 0))
        source.hear(m.Slot)


SCALES = torch.linspace(0.5, 2.0, LAYERS * 2 * HEADS).reshape(LAYERS, 2, HEADS)


def send_fp8(stage: Stage, source: HandSource, arrival: Arrival, kv: torch.Tensor, form: str) -> None:
    """Of a TP4 source in its own `SCALES`."""
    move = source.begin(ROOM, TOKENS)
    go = source.hear(m.Go)
    for ticket, route in enumerate(source.routes(stage.worker)):
        head = route.heads.start
        if form == "scattered":
            source.write_pool(route, go, kv[:, :, :, head : head + 1])
            scales = SCALES[:, :, head : head + 1].contiguous().numpy().tobytes()
            source.say(m.Landed(move, route.src_rank, route.dst_rank, scales=scales))
        else:
            for layers in (range(1), range(1, LAYERS)):
                told = source.stage(move, route, go, kv, layers, 2 * ticket + layers.start)
                scales = SCALES[layers.start : layers.stop, :, head : head + 1].contiguous()
                source.say(msgspec.structs.replace(told, scales=scales.numpy().tobytes()))
                source.hear(m.Scattered)
    source.say(m.End(move))


@pytest.fixture(params=["all at once", "layer by layer", "token by token"])
def scattered_in_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "all at once":
        monkeypatch.setattr(scattering, "BUFFER_BYTES", 1)
    if request.param == "token by token":
        monkeypatch.setattr(scattering, "TOKENS_BYTES", 1)


@pytest.mark.usefixtures("scattered_in_parts")
@pytest.mark.parametrize("form", ["scattered", "staged"])
def test_scales_of_fp8_that_keeps_its_dtype(form):
    for stage in staged_by(dtype="fp8_e4m3"):
        source = stage.source(tp=4, dtype="fp8_e4m3")
        kv = random_kv(stage.worker[0], HEADS, TOKENS)
        arrival = stage.expect()
        send_fp8(stage, source, arrival, kv, form)
        scales = arrival.wait(WAIT_S).scales
        assert sorted(scales) == [0, 1]
        assert torch.equal(torch.cat([scales[0], scales[1]], dim=2), SCALES)
        assert torch.equal(stage.held().view(torch.uint8), kv.view(torch.uint8))


def test_scales_that_nobody_gave_are_one():
    for stage in staged_by(dtype="fp8_e4m3"):
        source = stage.source(dtype="fp8_e4m3")
        arrival, move, go = stage.started(source)
        kv = random_kv(stage.worker[0], HEADS, TOKENS)
        source.land(move, source.routes(stage.worker)[0], go, kv)
        told = source.stage(move, source.routes(stage.worker)[1], go, kv, range(LAYERS), 0)
        source.say(told)
        source.hear(m.Scattered)
        source.say(m.End(move))
        assert all(bool((one == 1).all()) for one in arrival.wait(WAIT_S).scales.values())


@pytest.mark.usefixtures("scattered_in_parts")
def test_fp8_into_the_scales_that_are_wanted():
    wanted = {0: SCALES[:, :, :2] * 4, 1: SCALES[:, :, 2:] * 4}
    for stage in staged_by(dtype="fp8_e4m3"):
        source = stage.source(tp=4, dtype="fp8_e4m3")
        kv = random_kv(stage.worker[0], HEADS, TOKENS)
        arrival = stage.expect(scales=wanted)
        send_fp8(stage, source, arrival, kv, "staged")
        scales = arrival.wait(WAIT_S).scales
        assert all(torch.equal(scales[rank], wanted[rank]) for rank in (0, 1))
        found = stage.held().float() * torch.cat([scales[0], scales[1]], 2)[:, :, None, :, None]
        meant = kv.float() * SCALES[:, :, None, :, None]
        assert torch.allclose(found, meant, rtol=1 / 16, atol=0.01)
    for stage in staged_by(dtype="fp8_e4m3"):
        source = stage.source(tp=4, dtype="fp8_e4m3")
        arrival = stage.expect(scales=wanted)
        move = source.begin(ROOM, TOKENS)
        go = source.hear(m.Go)
        assert go.scales == tuple(wanted[rank].contiguous().numpy().tobytes() for rank in (0, 1))
        source.say(m.Landed(move, 0, 0))
        assert "other scales than wanted" in source.hear(m.No).reason


def test_all_tokens_of_fp8_have_the_same_scales():
    for other, reason in ((SCALES, None), (SCALES * 2, "other scales than the tokens before them")):
        for stage in staged_by(dtype="fp8_e4m3"):
            source, kv = stage.source(dtype="fp8_e4m3"), random_kv(stage.worker[0], HEADS, TOKENS)
            arrival, move, go = stage.started(source)
            route = source.routes(stage.worker)[0]
            for ticket, (tokens, scales) in enumerate(((range(9), SCALES), (range(9, 21), other))):
                told = source.stage(move, route, go, kv, range(LAYERS), ticket, tokens)
                given = scales[:, :, :2].contiguous().numpy().tobytes()
                source.say(msgspec.structs.replace(told, scales=given))
                if ticket == 0 or reason is None:
                    source.hear(m.Scattered)
            if reason is not None:
                assert reason in source.hear(m.No).reason
                failure(arrival, Refused, reason)


@pytest.mark.parametrize("wanted", [None, {0: SCALES[:, :, :2], 1: SCALES[:, :, 2:]}])
def test_fp8_is_made_of_some_tokens_only_in_scales_that_are_wanted(wanted):
    """Each portion's own would not be good for the others."""
    for stage in staged_by(dtype="fp8_e4m3"):
        source, kv = stage.source(), random_kv(worker(2)[0], HEADS, TOKENS)
        arrival, move, go = stage.started(source, scales=wanted)
        route = source.routes(stage.worker)[0]
        source.say(source.stage(move, route, go, kv, range(LAYERS), 0, range(9)))
        if wanted is None:
            assert "no scale that is good for all" in source.hear(m.No).reason
            failure(arrival, Refused)
        else:
            source.hear(m.Scattered)
            made = convert(kv[:, :, :9, :2].contiguous(), "fp8_e4m3", None, SCALES[:, :, :2].contiguous())[0]
            assert torch.equal(gather(stage.pools[0], AT, 9).view(torch.uint8), made.view(torch.uint8))


def test_fp8_does_not_go_into_another_dtype_piece_by_piece(stage):
    source = stage.source(tp=2, dtype="fp8_e4m3")
    arrival, move, _ = stage.started(source)
    source.say(m.Landed(move, 0, 0))
    assert "fp8_e4m3 was written into a pool of bfloat16" in source.hear(m.No).reason
    failure(arrival, Refused)


@pytest.mark.usefixtures("scattered_in_parts")
def test_fp8_on_the_wire_into_another_dtype(stage):
    source = stage.source(tp=2, dtype="fp8_e4m3")
    kv = random_kv(worker(2, "fp8_e4m3")[0], HEADS, TOKENS)
    arrival, move, go = stage.started(source, verify=True)
    for ticket, route in enumerate(source.routes(stage.worker)):
        heads = slice(route.heads.start, route.heads.stop)
        scales = SCALES[:, :, heads].contiguous().numpy().tobytes()
        told = source.stage(move, route, go, kv, range(LAYERS), ticket)
        source.say(msgspec.structs.replace(told, scales=scales))
        assert source.hear(m.Scattered).convert_s > 0
    source.say(m.End(move))
    assert not arrival.wait(WAIT_S).scales
    meant = (kv.float() * SCALES[:, :, None, :, None]).to(torch.bfloat16)
    assert torch.equal(stage.held(), meant)


@pytest.mark.parametrize(
    ("scales", "reason"),
    [(0.0, "not positive"), (-1.0, "not positive"), (float("nan"), "not positive"), (float("inf"), "finite")],
)
def test_scales_that_are_none(stage, scales, reason):
    source = stage.source(tp=2, dtype="fp8_e4m3")
    arrival, move, go = stage.started(source)
    kv = random_kv(worker(2, "fp8_e4m3")[0], HEADS, TOKENS)
    told = source.stage(move, source.routes(stage.worker)[0], go, kv, range(LAYERS), 0)
    given = torch.full((LAYERS, 2, 2), scales).numpy().tobytes()
    source.say(msgspec.structs.replace(told, scales=given))
    assert reason in source.hear(m.No).reason
    failure(arrival, Refused)


def test_values_that_the_pool_cannot_hold():
    for stage in staged_by(dtype="float16"):
        source = stage.source(tp=2)
        kv = random_kv(worker(2)[0], HEADS, TOKENS)
        kv[1, 1, 4, 1] = 1e30
        arrival, move, go = stage.started(source)
        source.say(source.stage(move, source.routes(stage.worker)[0], go, kv, range(LAYERS), 0))
        assert "is not finite" in source.hear(m.No).reason
        failure(arrival, Refused, "not finite")


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (m.Hello(m.VERSION + 1, "a", worker(2), (0,)), f"version {m.VERSION + 1}"),
        (m.Hello(m.VERSION, "a", worker(2), (2,)), "ranks (2,) of a worker of 2"),
        (m.Hello(m.VERSION, "a", worker(2), (-1,)), "ranks (-1,)"),
        (m.Hello(m.VERSION, "a", worker(2), ()), "ranks ()"),
        (m.Hello(m.VERSION, "a", (), (0,)), "of a worker of 0"),
        (m.Hello(m.VERSION, "a", worker(2)[:1], (0,)), "KV heads differ"),
        (m.Hello(m.VERSION, "a", (PoolSpec(9, 4, 8, 1, 1, "bf16"),), (0,)), "9 layers in the source"),
        (m.Hello(m.VERSION, "a", (PoolSpec(3, 2**40, 8, 1, 1, "bf16"),), (0,)), "more than 65536 heads"),
        # A replica of rank 1, which gives rank 1 everything already.
        (m.Hello(m.VERSION, "a", (*worker(2), worker(2)[1]), (2,)), "give nothing"),
        (m.Begin(1, ROOM, TOKENS, False), "a Begin before Hello"),
    ],
)
def test_a_source_that_cannot_work_with_this_one(stage, hello, reason):
    source = stage.source(hello=hello)
    assert isinstance(source.welcome, m.No), source.welcome
    assert source.welcome.move == m.NO_MOVE
    assert reason in source.welcome.reason
    with pytest.raises(PeerGone):
        source.channel.receive(WAIT_S)
    assert isinstance(stage.source().welcome, m.Welcome)


def nested() -> bytes:
    """A Begin with a sixth field, of lists in lists."""
    begin = msgspec.msgpack.encode(m.Begin(9, ROOM, TOKENS, False))
    return bytes([begin[0] + 1]) + begin[1:] + b"\x91" * 100_000 + b"\xc0"


@pytest.mark.parametrize("what", ["garbage", "nested", "Hello"])
def test_a_connection_that_breaks_the_protocol_ends_with_its_moves(stage, what):
    source = stage.source()
    arrival, _, _ = stage.started(source)
    if what == "Hello":
        source.say(m.Hello(m.VERSION, "again", source.worker, (0,)))
    else:
        frame = b"hi" if what == "garbage" else nested()
        source.channel._socket.sendall(len(frame).to_bytes(4, "big") + frame)
    assert source.hear(m.No).move == m.NO_MOVE
    with pytest.raises(PeerGone):
        source.channel.receive(WAIT_S)
    failure(arrival, PeerGone)
    assert stage.pages() == QUARANTINED


def test_a_source_that_does_not_read_holds_up_nobody(stage):
    source = stage.source()
    arrival, _, _ = stage.started(source)
    (incoming,) = stage.destination._incoming
    fill(incoming._channel._socket)
    began_s = time.monotonic()
    with pytest.raises(DeadlinePassed):
        arrival.wait(0.0)
    assert time.monotonic() - began_s < SEND_TIMEOUT_S / 2
    until(lambda: not stage.destination._incoming)
    assert stage.pages() == QUARANTINED


def fill(connection: socket.socket) -> None:
    """Until it takes no more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            connection.send(bytes(65536), socket.MSG_DONTWAIT)


def test_a_mistake_in_reading_ends_a_connection_with_its_moves(stage, monkeypatch):
    source = stage.source()
    arrival, _, _ = stage.started(source)
    (incoming,) = stage.destination._incoming
    monkeypatch.setattr(incoming._channel, "_decoder", None)
    source.say(m.Want(0, 0))
    failure(arrival, PeerGone, "AttributeError")
    until(lambda: not stage.destination._incoming)
    assert stage.pages() == QUARANTINED


def test_without_a_thread_for_it_a_connection_is_refused_and_the_next_is_not(stage, monkeypatch):
    start = threading.Thread.start

    def none_left(thread: threading.Thread) -> None:
        if thread.name == "kvferry-handoff-in":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        with pytest.raises(PeerGone):
            stage.source()
    assert isinstance(stage.source().welcome, m.Welcome)


def test_what_cannot_be_expected(stage):
    expect = stage.destination.expect
    stage.expect()
    with pytest.raises(Refused, match="room 77 is expected already"):
        expect(ROOM, Place.of([0]), 1)
    with pytest.raises(Refused, match="page 14 is arriving, not free"):
        expect(ROOM + 1, Place.of([0, 14, 2]), 12)
    expect(ROOM + 1, Place.of([0, 14, 2]), 4)  # the pages that hold no token are not taken
    for place, tokens, why in (
        (Place.of([1]), 5, "2 needed"),
        (Place.of([PAGES]), 1, "page 16 is outside"),
        (Place.of([1, 1]), 8, "page 1 is given twice"),
        (Place.of([1]), 0, "0 tokens"),
        (Place.of([1], -1), 1, "first token is -1"),
    ):
        with pytest.raises(Impossible, match=why):
            expect(ROOM + 2, place, tokens)
    with pytest.raises(ValueError, match="no fp8 pool"):
        expect(ROOM + 2, Place.of([1]), 1, scales={0: SCALES[:, :, :2]})
    with pytest.raises(Refused, match="page 9 is arriving, not readable"):
        stage.destination.release([9])
    assert stage.destination.free_pages() == ALL - USED - {0}
    stage.destination.close()
    with pytest.raises(Refused, match="closed"):
        expect(ROOM + 3, Place.of([1]), 1)


def test_closing_ends_who_waits_and_leaves_nothing_behind():
    threads, sockets = set(threading.enumerate()), open_sockets()
    made = Stage()
    source = made.source()
    arrival, move, _ = made.started(source)
    closing = threading.Timer(0.1, made.destination.close)
    closing.start()
    failure(arrival, Cancelled, "the destination closes")
    assert source.hear(m.Cancel).move == move
    closing.join()
    with pytest.raises(PeerGone):
        source.channel.receive(WAIT_S)
    made.destination.close()
    assert {each.name for each in set(threading.enumerate()) - threads} == {"kvferry-local"}  # the source's
    made.sources.close()
    assert open_sockets() == sockets


def open_sockets() -> int:
    links = []
    for each in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{each}"))
        except FileNotFoundError:  # of the listing itself
            continue
    return sum(link.startswith("socket:") for link in links)
