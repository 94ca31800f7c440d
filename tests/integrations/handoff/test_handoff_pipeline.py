"""Layers travel as soon as they are computed, and none before."""

import itertools
import threading
import time
from typing import Any

import numpy as np
import pytest
from handoff_ways import PATTERN, until
from slow_reference import Worker, worker_bytes

from kvferry.integrations.handoff.gate import LayerGate
from kvferry.models.moves.choose import Form
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import ranks_of
from kvferry.policy.kvshape import KVShape
from kvferry.policy.layout import KVLayout, LayoutOrder

SHAPE = KVShape(5, 4, 32)
TOKENS = 96
SRC = ranks_of(SHAPE, KVLayout(16, tp=2), pages=8)
SIDES = {
    "TP1, page 16": ranks_of(SHAPE, KVLayout(16), pages=8),
    "TP4, page 32, page-first": ranks_of(SHAPE, KVLayout(32, tp=4, order=LayoutOrder.PAGE_FIRST), pages=4),
    "fp8": ranks_of(SHAPE, KVLayout(16, "fp8_e4m3"), pages=8),
}
# Bytes of a head, times heads, that a pair of ranks shares: one layer fills a staging slot.
PAIR_BYTES = {"TP1, page 16": 2 * 64, "TP4, page 32, page-first": 64, "fp8": 2 * 32}
POISON = 0x7F  # NaN in bfloat16
rooms = itertools.count(2000)


def touched(worker: Worker, at: Place) -> list[list[bool]]:
    """Of each rank, which layers have any byte of the tokens written."""
    return [
        [bool((layer != PATTERN).any()) for layer in worker.take(rank, at, TOKENS)]
        for rank in range(len(worker.specs))
    ]


def all_came(worker: Worker, at: Place, layers: int) -> bool:
    return all(rank == [True] * layers + [False] * (SHAPE.layers - layers) for rank in touched(worker, at))


@pytest.mark.parametrize(("side", "form"), [*itertools.product(list(SIDES)[:2], Form), ("fp8", None)])
def test_computed_layers_arrive_before_the_last_is_computed(way, side, form):
    rng = np.random.default_rng(1)
    kv: Any = rng.integers(0, 60, (SHAPE.layers, 2, TOKENS, 4, 64), np.uint8)  # finite numbers, none PATTERN
    src_at, dst_at = (Place.of(rng.permutation(pools[0].pages)) for pools in (SRC, SIDES[side]))
    here = Worker(SRC, np.full(worker_bytes(SRC), POISON, np.uint8))
    target, room, gate = way.target(SIDES[side]), next(rooms), LayerGate()
    target.expect(room, dst_at, TOKENS)
    with way.source(here, slot_bytes=2 * TOKENS * PAIR_BYTES[side]) as source:
        peering = source.connect("decode", "127.0.0.1", target.port)
        departure = source.send(peering, room, src_at, TOKENS, form=form, gate=gate)
        time.sleep(0.1)
        for layer in range(SHAPE.layers):
            assert all_came(target.worker, dst_at, layer)  # and nothing of the next
            whole = np.full_like(kv, POISON)
            whole[: layer + 1] = kv[: layer + 1]
            here.put(src_at, whole)
            gate.computed(layer + 1)
            if layer + 1 < SHAPE.layers:
                until(lambda done=layer + 1: all_came(target.worker, dst_at, done), f"layer {layer}")
                assert not target.pages()["readable"]
        record = departure.wait(30)
    target.wait(room)
    assert record.gated
    if side != "fp8":
        for rank, spec in enumerate(SIDES[side]):
            mine = kv[:, :, :, spec.first_head : spec.first_head + spec.heads]
            assert (target.worker.take(rank, dst_at, TOKENS) == mine).all()


def test_nothing_travels_before_what_was_queued_is_there(way):
    """`computed` may be told of layers whose kernels only run: `ready` blocks until they are done."""
    spec = SIDES["TP1, page 16"]
    here = Worker(spec, np.full(worker_bytes(spec), POISON, np.uint8))
    at = Place.of(range(6))
    target, room, gate, done = way.target(spec), next(rooms), LayerGate(), threading.Event()
    target.expect(room, at, TOKENS)
    with way.source(here) as source:
        departure = source.send(
            source.connect("decode", "127.0.0.1", target.port), room, at, TOKENS, gate=gate
        )
        gate.computed(SHAPE.layers, ready=done.wait)
        time.sleep(0.2)
        assert all_came(target.worker, at, 0)
        here.memory[:] = 1
        done.set()
        departure.wait(30)
    target.wait(room)
    assert (target.worker.take(0, at, TOKENS) == 1).all()


def test_one_gate_for_two_destinations(way):
    """A prompt whose KV goes to two decode workers is computed once."""
    spec = SIDES["TP1, page 16"]
    here = Worker(spec, np.full(worker_bytes(spec), 3, np.uint8))
    at = Place.of(range(6))
    targets, gate = [way.target(spec), way.target(spec, way.other)], LayerGate()
    with way.source(here, slot_bytes=2 * TOKENS * 4 * 64) as source:
        departures = []
        for index, target in enumerate(targets):
            room = next(rooms)
            target.expect(room, at, TOKENS)
            peering = source.connect(f"decode-{index}", "127.0.0.1", target.port)
            departures.append(source.send(peering, room, at, TOKENS, gate=gate))
        gate.computed(2)
        until(lambda: all(all_came(target.worker, at, 2) for target in targets), "two layers")
        gate.computed(SHAPE.layers)
        for departure in departures:
            departure.wait(30)
    assert all((target.worker.take(0, at, TOKENS) == 3).all() for target in targets)
