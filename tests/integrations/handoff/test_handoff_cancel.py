"""Moves given up while their bytes fly: what was free again is never written afterwards."""

import contextlib
import itertools
import signal
import time
from typing import Any

import numpy as np
import pytest
from handoff_ways import PATTERN, PeerSaid, Target, Way, until
from slow_reference import Worker, worker_bytes

from kvferry.integrations.transports.errors import Cancelled, DeadlinePassed, Refused
from kvferry.models.moves.choose import Form
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec

MIB = 2**20
TOKENS = 400
# 8 MiB; cut by heads they are 12,800 descriptors.
SRC = (PoolSpec(8, 8, 64, pages=TOKENS, page_size=1, dtype="bfloat16"),)
DST = tuple(
    PoolSpec(8, 4, 64, pages=30, page_size=16, dtype="bfloat16", first_head=4 * rank) for rank in (0, 1)
)
AT = Place.of(np.random.default_rng(1).permutation(TOKENS)), Place.of(range(25))
AFTERWARDS = 0x3C
rooms = itertools.count(3000)


@pytest.fixture(scope="module")
def kv() -> Any:
    return np.random.default_rng(2).integers(0, 256, (8, 2, TOKENS, 8, 128), np.uint8)


@pytest.fixture(scope="module")
def worker(kv: Any) -> Worker:
    worker = Worker(SRC, np.zeros(worker_bytes(SRC), np.uint8))
    worker.put(AT[0], kv)
    return worker


def came_whole(target: Target, kv: Any) -> bool:
    return all(
        (target.worker.take(rank, AT[1], TOKENS) == kv[:, :, :, 4 * rank : 4 * rank + 4]).all()
        for rank in (0, 1)
    )


def arrived(target: Target, room: int) -> bool:
    try:
        target.wait(room)
    except PeerSaid:
        return False
    return True


def nothing_is_written_any_more(target: Target, pages: set[int]) -> None:
    """Once the pages are free they are somebody else's."""
    until(lambda: pages <= target.pages()["free"], "the drain")
    target.process.memory[: worker_bytes(DST)] = AFTERWARDS
    time.sleep(0.2)
    assert (target.process.memory[: worker_bytes(DST)] == AFTERWARDS).all()


@pytest.mark.parametrize("form", Form)
def test_given_up_at_any_time(way: Way, worker: Worker, kv: Any, form: Form) -> None:
    pages = set(range(25))
    target = way.target(DST, quarantine_s=60.0, slot_bytes=2 * MIB)
    with way.source(worker, slot_bytes=2 * MIB) as source:
        peering = source.connect("decode", "127.0.0.1", target.port)

        def begin() -> tuple[int, Any]:
            room = next(rooms)
            target.process.memory[: worker_bytes(DST)] = PATTERN
            target.expect(room, AT[1], TOKENS)
            return room, source.send(peering, room, AT[0], TOKENS, form=form)

        room, departure = begin()
        whole_s = departure.wait(60).total_s
        assert arrived(target, room)
        assert came_whole(target, kv)
        target.process.ask("release", pages=sorted(pages))
        for share, by_source in ((0.1, True), (0.3, False), (0.6, True), (0.9, False)):
            room, departure = begin()
            time.sleep(share * whole_s)
            if by_source:
                departure.cancel()
            else:
                target.process.ask("cancel", room=room)
            try:
                departure.wait(30)
                gone = False
            except Cancelled:
                gone = True
            if arrived(target, room):  # it was faster than we
                assert came_whole(target, kv)
                target.process.ask("release", pages=sorted(pages))
            else:
                assert gone
            assert not target.pages()["readable"]
            nothing_is_written_any_more(target, pages)
        room, departure = begin()
        departure.wait(60)
        assert arrived(target, room)
        assert came_whole(target, kv)


@pytest.mark.parametrize("form", Form)
def test_stopped_while_bytes_fly(way: Way, worker: Worker, kv: Any, form: Form) -> None:
    pages = set(range(25))
    target = way.target(DST, way.other, quarantine_s=60.0, slot_bytes=2 * MIB)
    with way.source(worker, slot_bytes=2 * MIB) as source:
        peering = source.connect("decode", "127.0.0.1", target.port)
        room = next(rooms)
        target.expect(room, AT[1], TOKENS)
        departure = source.send(peering, room, AT[0], TOKENS, form=form)
        until(lambda: not (target.worker.take(1, AT[1], 1) == PATTERN).all(), "the first bytes")
        way.other.send(signal.SIGSTOP)
        try:
            # Bytes that are at the source already may be enough for it.
            done = False
            try:
                departure.wait(0.5)
                done = True
            except DeadlinePassed:
                pass
        finally:
            way.other.send(signal.SIGCONT)
        if arrived(target, room):
            assert came_whole(target, kv)
            target.process.ask("release", pages=sorted(pages))
        else:
            assert not done
        nothing_is_written_any_more(target, pages)


def test_many_at_once_of_which_some_are_given_up(way: Way) -> None:
    """Both ends' staging slots are two: who gives up must not keep one."""
    spec = PoolSpec(3, 4, 64, pages=64, page_size=16, dtype="bfloat16")
    rng = np.random.default_rng(3)
    here = Worker((spec,), rng.integers(0, 256, worker_bytes((spec,)), np.uint8))
    target = way.target((spec,), quarantine_s=60.0, slots=2, slot_bytes=MIB // 4)
    with way.source(here, slots=2, slot_bytes=MIB // 4) as source:
        peering = source.connect("decode", "127.0.0.1", target.port)
        for _ in range(3):
            target.process.memory[: worker_bytes((spec,))] = PATTERN
            under_way = []
            for at in rng.permutation(64).reshape(8, 8):
                room = next(rooms)
                target.expect(room, Place.of(at), 128, verify=bool(rng.integers(2)))
                form = list(Form)[rng.integers(2)]
                under_way.append((room, at, source.send(peering, room, Place.of(at), 128, form=form)))
            for room, _, departure in under_way:
                match rng.integers(4):
                    case 0:
                        departure.cancel()
                    case 1:
                        target.process.ask("cancel", room=room)
            for room, at, departure in under_way:
                with contextlib.suppress(
                    Cancelled, Refused
                ):  # refused: its room was cancelled before it began
                    departure.wait(30)
                if arrived(target, room):
                    found, wanted = target.worker.held(0)[:, :, at], here.held(0)[:, :, at]
                    assert (found == wanted).all()
                    target.process.ask("release", pages=at.tolist())
            until(lambda: len(target.pages()["free"]) == 64, "pages that are all free")
        for form, quarter in itertools.product(Form, range(4)):
            at = Place.of(range(16 * quarter, 16 * quarter + 16))
            target.expect(room := next(rooms), at, 256, verify=True)
            source.send(peering, room, at, 256, form=form).wait(30)
            assert arrived(target, room)
            target.process.ask("release", pages=at.pages.tolist())
        assert (target.worker.memory[: worker_bytes((spec,))] == here.memory).all()
