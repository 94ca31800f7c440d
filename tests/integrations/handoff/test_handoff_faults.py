"""Whatever fails halfway through a handoff: the right error in time, no page used early, the rest goes on."""

import contextlib
import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from handoff_ways import PATTERN, PeerSaid, Target, Way, opening, until
from slow_reference import Worker, worker_bytes

from kvferry.integrations.handoff.gate import LayerGate
from kvferry.integrations.handoff.source import Source
from kvferry.integrations.transports.base import Batch
from kvferry.integrations.transports.errors import Cancelled, DeadlinePassed, PeerGone, Refused, Wedged
from kvferry.models.moves.choose import Form
from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec

SPEC = PoolSpec(layers=4, heads=4, head_dim=32, pages=32, page_size=16, dtype="bfloat16")
TOKENS = 16 * 16
# One layer goes at a time, in either form.
SLOT_BYTES = TOKENS * SPEC.token_bytes * 2
HALVES = Place.of(range(31, 15, -1)), Place.of(range(16))
QUARANTINE_S = 1.5
rooms = itertools.count(1000)


@pytest.fixture(scope="module")
def worker() -> Worker:
    memory = np.random.default_rng(1).integers(0, 256, worker_bytes((SPEC,)), np.uint8)
    return Worker((SPEC,), memory)


@pytest.fixture
def source(way: Way, worker: Worker) -> Iterator[Source]:
    with way.source(worker, slot_bytes=SLOT_BYTES) as source:
        yield source


def layer_is_there(worker: Worker, target: Target, layer: int, at: Place) -> bool:
    """The layer's bytes of `HALVES[0]` of the source are in the target's memory at `at`."""
    there = target.worker.held(0)[layer][:, at.pages]
    return bool((there == worker.held(0)[layer][:, HALVES[0].pages]).all())


def works(source: Source, worker: Worker, target: Target, at: Place = HALVES[1], **options: Any) -> None:
    """Another room to `at` arrives, and its pages are free again."""
    room = next(rooms)
    target.expect(room, at, TOKENS)
    peering = source.connect(options.get("name", "decode"), "127.0.0.1", target.port)
    source.send(peering, room, HALVES[0], TOKENS).wait(30)
    target.wait(room)
    assert all(layer_is_there(worker, target, layer, at) for layer in range(SPEC.layers))
    target.process.ask("release", pages=[int(page) for page in at.pages])


@dataclass
class Halfway:
    """A handoff whose first layer is in the target, while the other layers are not computed."""

    room: int
    target: Target
    at: Place
    gate: LayerGate
    departure: Any
    peering: Any

    @property
    def pages(self) -> set[int]:
        return {int(page) for page in self.at.pages}

    def nothing_is_readable(self) -> None:
        assert not self.target.pages()["readable"]

    def end_somehow(self, worker: Worker) -> None:
        """The source gave up while the target was stopped. What the target read first when it went on tells
        whether the room failed, or came after all: whole, then."""
        with contextlib.suppress(PeerSaid):
            self.target.wait(self.room)
            assert all(layer_is_there(worker, self.target, layer, self.at) for layer in range(SPEC.layers))
            assert self.target.pages()["readable"] == self.pages
            self.target.process.ask("release", pages=sorted(self.pages))
        self.nothing_is_readable()
        # By the source's word, long before the time-out.
        until(lambda: self.pages <= self.target.pages()["free"], "the drain")


def halfway(
    source: Source,
    worker: Worker,
    target: Target,
    name: str = "decode",
    peering: Any = None,
    **options: Any,
) -> Halfway:
    at, room, gate = HALVES[1], next(rooms), LayerGate()
    target.process.memory[: worker_bytes((SPEC,))] = PATTERN
    target.expect(room, at, TOKENS, verify=options.get("verify", False))
    peering = peering or source.connect(name, "127.0.0.1", target.port)
    departure = source.send(peering, room, HALVES[0], TOKENS, gate=gate, **options)
    gate.computed(1)
    until(lambda: layer_is_there(worker, target, 0, at), "layer 0")
    return Halfway(room, target, at, gate, departure, peering)


def free_only_after(target: Target, pages: set[int], since_s: float, quarantine_s: float) -> None:
    """The pages are in quarantine, refuse to be expected, and are free when the time is over."""
    now = target.pages()
    assert pages <= now["quarantined"]
    assert not pages & (now["free"] | now["readable"])
    with pytest.raises(PeerSaid, match=r"Refused: .*page 0 is quarantined"):
        target.expect(next(rooms), HALVES[1], TOKENS)
    until(lambda: pages <= target.pages()["free"], "the end of the quarantine")
    assert time.monotonic() - since_s >= quarantine_s * 0.9


def test_a_killed_destination_and_another_under_its_name(way, worker, source):
    other = way.target((SPEC,))
    works(source, worker, other, name="other")
    under_way = halfway(source, worker, way.target((SPEC,), way.other), "victim")
    way.other.send(signal.SIGKILL)
    under_way.gate.computed(SPEC.layers)
    with pytest.raises((PeerGone, Wedged)):
        under_way.departure.wait(30)
    works(source, worker, other, name="other")
    with pytest.raises((PeerGone, Refused)):
        source.send(under_way.peering, next(rooms), HALVES[0], TOKENS).wait(30)
    with pytest.raises(PeerGone):
        source.connect("victim", "127.0.0.1", under_way.target.port)
    works(source, worker, way.target((SPEC,), way.other), name="victim")


def test_a_stopped_destination_fails_the_move_at_its_own_deadline(way, worker, source):
    other = way.target((SPEC,))
    process = way.other
    under_way = halfway(source, worker, way.target((SPEC,), process, quarantine_s=60.0), "sleeper")
    process.send(signal.SIGSTOP)
    try:
        under_way.gate.computed(SPEC.layers)
        began_s = time.monotonic()
        with pytest.raises(DeadlinePassed):
            under_way.departure.wait(1.0)
        assert 1.0 <= time.monotonic() - began_s < 5.0
        works(source, worker, other, name="other")
    finally:
        process.send(signal.SIGCONT)
    under_way.end_somehow(worker)
    works(source, worker, under_way.target, name="sleeper")


def test_a_killed_source(way, worker):
    target = way.target((SPEC,), quarantine_s=QUARANTINE_S)
    process, room = way.other, next(rooms)
    there = Worker((SPEC,), process.memory)
    there.memory[: worker_bytes((SPEC,))] = worker.memory
    process.ask("source", **opening("prefill", there, None, {"slot_bytes": SLOT_BYTES}))
    target.expect(room, HALVES[1], TOKENS)
    pages = [int(page) for page in HALVES[0].pages]
    process.ask("send", port=target.port, room=room, pages=pages, tokens=TOKENS, gated=True)
    process.ask("computed", layers=1)
    until(lambda: layer_is_there(worker, target, 0, HALVES[1]), "layer 0")
    target.process.tell("wait", room=room, deadline_s=30.0)
    failed_s = time.monotonic()
    process.send(signal.SIGKILL)
    with pytest.raises(PeerSaid, match="PeerGone") as raised:
        target.process.read()
    assert raised.value.unsafe
    free_only_after(target, set(range(16)), failed_s, QUARANTINE_S)
    with way.source(worker, slot_bytes=SLOT_BYTES) as source:
        works(source, worker, target)


@pytest.mark.parametrize("side", ["source", "destination"])
@pytest.mark.parametrize("form", Form)
def test_cancelled_halfway(way, worker, source, side, form):
    target = way.target((SPEC,), quarantine_s=60.0)
    under_way = halfway(source, worker, target, form=form)
    if side == "source":
        under_way.departure.cancel()
    else:
        target.process.ask("cancel", room=under_way.room)
    with pytest.raises(Cancelled):
        under_way.departure.wait(30)
    with pytest.raises(PeerSaid, match="Cancelled" if side == "destination" else "GivenUp"):
        target.wait(under_way.room)
    under_way.nothing_is_readable()
    until(lambda: under_way.pages <= target.pages()["free"], "the drain")
    under_way.gate.computed(SPEC.layers)
    works(source, worker, target)
    # What was not computed when it was cancelled never came.
    assert not target.pages()["quarantined"]


def test_a_room_that_is_never_expected(way, worker, source):
    target = way.target((SPEC,))
    peering = source.connect("decode", "127.0.0.1", target.port)
    began_s = time.monotonic()
    with pytest.raises((DeadlinePassed, Refused)):
        source.send(peering, next(rooms), HALVES[0], TOKENS).wait(0.5)
    assert time.monotonic() - began_s < 5.0
    assert (target.process.memory[: worker_bytes((SPEC,))] == PATTERN).all()
    works(source, worker, target)


def test_a_room_that_never_comes(way, worker, source):
    target = way.target((SPEC,), quarantine_s=60.0)
    room = next(rooms)
    target.expect(room, HALVES[1], TOKENS)
    with pytest.raises(PeerSaid, match="DeadlinePassed") as raised:
        target.wait(room, deadline_s=0.3)
    # Nobody was told where its pages are.
    assert not raised.value.unsafe
    assert set(range(16)) <= target.pages()["free"]
    peering = source.connect("decode", "127.0.0.1", target.port)
    with pytest.raises((DeadlinePassed, Refused)):
        source.send(peering, room, HALVES[0], TOKENS).wait(0.5)
    assert (target.process.memory[: worker_bytes((SPEC,))] == PATTERN).all()
    works(source, worker, target)


def test_a_room_that_is_expected_after_its_source_began(way, worker, source):
    target, room = way.target((SPEC,)), next(rooms)
    peering = source.connect("decode", "127.0.0.1", target.port)
    departure = source.send(peering, room, HALVES[0], TOKENS)
    time.sleep(0.1)
    target.expect(room, HALVES[1], TOKENS)
    departure.wait(30)
    target.wait(room)
    assert all(layer_is_there(worker, target, layer, HALVES[1]) for layer in range(SPEC.layers))


def test_the_destination_gives_up_at_its_own_deadline(way, worker, source):
    target = way.target((SPEC,), quarantine_s=60.0)
    under_way = halfway(source, worker, target)
    with pytest.raises(PeerSaid, match="DeadlinePassed"):
        target.wait(under_way.room, deadline_s=0.3)
    with pytest.raises(Cancelled, match="not there after"):
        under_way.departure.wait(30)
    until(lambda: under_way.pages <= target.pages()["free"], "the drain")
    works(source, worker, target)


class Spoiling:
    """A transport that writes a wrong byte over the first of each batch once the batch has landed."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.on = inner, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, peer: Any, batch: Batch) -> Any:
        return Spoilt(self, peer, batch) if self.on else self.inner.submit(peer, batch)


class Spoilt:
    def __init__(self, transport: Spoiling, peer: Any, batch: Batch) -> None:
        self._transport, self._peer, self._batch = transport, peer, batch
        self._moving = transport.inner.submit(peer, batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._moving, name)

    def wait(self, deadline_s: float) -> Any:
        measured = self._moving.wait(deadline_s)
        first = int(self._batch.src_addresses[0])
        block = (np.ctypeslib.ctypes.c_uint8 * int(self._batch.nbytes[0])).from_address(first)
        other = next(offset for offset, value in enumerate(block) if value != block[0])
        one = np.array([1], np.int64)
        wrong = Batch(np.array([first + other]), self._batch.dst_addresses[:1], one)
        self._transport.inner.submit(self._peer, wrong).wait(deadline_s)
        return measured


@pytest.mark.parametrize("form", Form)
def test_a_wrong_byte_is_found_and_never_readable(way, worker, form):
    target, room = way.target((SPEC,), quarantine_s=60.0), next(rooms)
    spoiling = Spoiling(way.open("prefill"))
    with way.source(worker, slot_bytes=SLOT_BYTES, transport=spoiling) as source:
        target.expect(room, HALVES[1], TOKENS, verify=True)
        peering = source.connect("decode", "127.0.0.1", target.port)
        departure = source.send(peering, room, HALVES[0], TOKENS, form=form)
        with pytest.raises(Refused, match="page"):
            departure.wait(30)
        with pytest.raises(PeerSaid, match="Corrupt: page"):
            target.wait(room)
        assert not target.pages()["readable"]
        until(lambda: set(range(16)) <= target.pages()["free"], "the drain")
        spoiling.on = False
        works(source, worker, target)


def test_a_byte_that_changed_in_the_pool(way, worker, source):
    """After it landed, before all of it was checked."""
    target = way.target((SPEC,))
    under_way = halfway(source, worker, target, form=Form.SCATTERED, verify=True)
    target.worker.held(0)[0, 1, 7, 3, 2, 1] ^= 1
    under_way.gate.computed(SPEC.layers)
    with pytest.raises(Refused, match="page 7"):
        under_way.departure.wait(30)
    with pytest.raises(PeerSaid, match="Corrupt: page 7"):
        target.wait(under_way.room)
    under_way.nothing_is_readable()


@pytest.mark.parametrize(
    ("changed", "said"), [({"layers": 3}, "layers"), ({"head_dim": 16}, "head_dim"), ({"heads": 2}, "heads")]
)
def test_a_layout_that_allows_no_move_says_why(way, worker, source, changed, said):
    values = {name: getattr(SPEC, name) for name in SPEC.__dataclass_fields__} | changed
    target = way.target((PoolSpec(**values),))
    before = left_here()
    with pytest.raises((Impossible, Refused), match=said):
        source.connect("decode", "127.0.0.1", target.port)
    until(lambda: left_here() <= before, "the connection's end", 5.0)
    works(source, worker, way.target((SPEC,)))


@pytest.mark.parametrize(
    ("pages", "tokens", "said"),
    [(range(16), TOKENS - 1, "tokens"), (range(3), TOKENS, "needed"), (range(20, 36), TOKENS, "outside")],
)
def test_a_send_of_something_else_than_expected_says_why(way, worker, source, pages, tokens, said):
    target, room = way.target((SPEC,)), next(rooms)
    target.expect(room, HALVES[1], TOKENS)
    peering = source.connect("decode", "127.0.0.1", target.port)
    with pytest.raises((Impossible, Refused), match=said):
        source.send(peering, room, Place.of(pages), tokens).wait(30)
    assert (target.process.memory[: worker_bytes((SPEC,))] == PATTERN).all()
    target.process.ask("cancel", room=room)
    until(lambda: len(target.pages()["free"]) == SPEC.pages, "pages that are free")
    works(source, worker, target)


def test_a_page_is_expected_once(way):
    target = way.target((SPEC,))
    target.expect(next(rooms), Place.of([3, 1]), 32)
    for pages, said in (([0, 1], "page 1 is arriving"), ([0, 99], "99"), ([5, 5], "twice")):
        with pytest.raises(PeerSaid, match=said):
            target.expect(next(rooms), Place.of(pages), 32)
    assert target.pages()["free"] == set(range(SPEC.pages)) - {1, 3}


def test_20000_descriptors_at_once(way):
    """TP1 to TP2: a descriptor for each token, layer, K/V and rank."""
    src = (PoolSpec(4, 2, 16, pages=1250, page_size=1, dtype="bfloat16"),)
    dst = tuple(PoolSpec(4, 1, 16, 1250, 1, "bfloat16", first_head=rank) for rank in range(2))
    rng = np.random.default_rng(2)
    kv = rng.integers(0, 256, (4, 2, 1250, 2, 32), np.uint8)
    here = Worker(src, np.zeros(worker_bytes(src), np.uint8))
    at = [Place.of(rng.permutation(1250)) for _ in range(2)]
    here.put(at[0], kv)
    target, room = way.target(dst), next(rooms)
    target.expect(room, at[1], 1250, verify=True)
    with way.source(here) as source:
        peering = source.connect("decode", "127.0.0.1", target.port)
        record = source.send(peering, room, at[0], 1250, form=Form.SCATTERED).wait(60)
    target.wait(room)
    assert record.descriptors == 20_000
    for rank in range(2):
        assert (target.worker.take(rank, at[1], 1250) == kv[:, :, :, rank : rank + 1]).all()


def test_the_breaker_opens_and_lets_one_trial_through(way, worker):
    target, now_s = way.target((SPEC,), way.other, quarantine_s=60.0), [100.0]
    with way.source(worker, slot_bytes=SLOT_BYTES, clock=lambda: now_s[0]) as source:
        peering = source.connect("decode", "127.0.0.1", target.port)

        def refused() -> str:
            try:
                source.send(peering, next(rooms), HALVES[0], TOKENS).cancel()
            except Refused as error:
                return str(error)
            return ""

        def fail(while_it_runs: Callable[[], Any]) -> None:
            under_way = halfway(source, worker, target, peering=peering)
            while_it_runs()
            way.other.send(signal.SIGSTOP)
            try:
                under_way.gate.computed(SPEC.layers)
                with pytest.raises(DeadlinePassed):
                    under_way.departure.wait(0.2)
            finally:
                way.other.send(signal.SIGCONT)
            under_way.end_somehow(worker)

        def only_a_trial() -> None:
            assert "is trying it" in refused()

        fail(while_it_runs=lambda: None)
        until(refused, "the breaker's opening")
        assert "not handed off" in refused()
        now_s[0] += 2.1
        fail(while_it_runs=only_a_trial)
        until(lambda: "is trying it" not in refused(), "the trial's end")
        now_s[0] += 2.1
        assert refused()  # for twice as long
        now_s[0] += 2.1
        trial = halfway(source, worker, target, peering=peering)
        only_a_trial()
        trial.gate.computed(SPEC.layers)
        trial.departure.wait(30)
        assert not refused()
        assert not refused()


def left_here() -> tuple[int, int, list[str]]:
    """Threads and sockets of this process."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("kvferry")]
    return len(os.listdir("/proc/self/task")), sum(link.startswith("socket:") for link in links), ours


def test_closing_leaves_no_thread_and_no_socket_on_either_side(way, worker):

    def use_and_close() -> None:
        target = way.target((SPEC,), closes=True)
        with way.source(worker, slot_bytes=SLOT_BYTES, transport=way.open("prefill", closes=True)) as source:
            works(source, worker, target)
            halfway(source, worker, target)
        source.close()
        with pytest.raises(Refused, match="closed"):
            source.connect("decode", "127.0.0.1", target.port)
        target.process.ask("close")

    use_and_close()  # what a library keeps for the life of the process it has by now
    gc.collect()
    here, there = left_here(), way.process.ask("left")
    use_and_close()
    gc.collect()
    until(lambda: left_here() <= here, "the end of threads and sockets here", 10.0)
    until(
        lambda: all(now <= before for now, before in zip(way.process.ask("left"), there, strict=True)),
        "their end at the destination",
        10.0,
    )


def test_idle_takes_under_two_percent_of_a_core(way, worker, source):
    target = way.target((SPEC,))
    works(source, worker, target)
    time.sleep(0.5)
    used_s, began_s = time.process_time(), time.monotonic()
    there = target.process.ask("idle")
    here = (time.process_time() - used_s) / (time.monotonic() - began_s)
    assert (here < 0.02, there < 0.02) == (True, True)
