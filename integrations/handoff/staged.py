"""A move in portions that are gathered here, travel in one write each, and are scattered there.

While portion k is on the wire portion k + 1 is gathered and portion k - 1 is scattered, so a move goes in
several portions even where one slot would hold all of it. Measured with 64 MiB of bf16 to fp8 between two
processes on two cores that others kept busy too, least of 12: in 1, 2, 4 and 8 of them 141, 110, 127 and
121 ms over Mooncake (TCP), 64, 65, 68 and 107 over NIXL (CMA). What runs at the same time gains nothing
where no core is free; 8 cost more than they can gain.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from kvferry.integrations.handoff.departure import Departure
from kvferry.integrations.handoff.filling import Filling, Load
from kvferry.integrations.handoff.gate import LayerGate
from kvferry.integrations.handoff.messages import Staged, Want
from kvferry.integrations.handoff.own import Own
from kvferry.integrations.handoff.scales import Scales
from kvferry.integrations.transports.base import Batch
from kvferry.models.moves.plan import Move
from kvferry.models.moves.portions import Portions, portions_of

__all__ = ["portions", "send_staged"]

PORTIONS = 4
# What a portion costs beyond its bytes is what copying some hundred KiB takes.
LEAST_BYTES = 1 << 20


def portions(moves: Sequence[Move], slot_bytes: int, wanted: int = PORTIONS) -> Portions | None:
    """What slots carry: `wanted` portions for all moves together, but each of at least 1 MiB and at most a
    slot. None where a slot does not hold one token of one layer."""
    layers = moves[0].src.layers
    layer_bytes = max(move.wire_bytes for move in moves) // layers
    spread = -(-layers * len(moves) // wanted)
    return portions_of(moves, slot_bytes, max(1, spread, -(-LEAST_BYTES // layer_bytes)))


def send_staged(
    departure: Departure,
    own: Own,
    moves: Sequence[Move],
    cut: Portions,
    scales: Scales,
    wanted: Scales,
    verify: bool,
    gate: LayerGate | None = None,
) -> None:
    """All moves, each in the portions of `cut`; `wanted` are the scales that a destination rank's fp8 values
    must be in. With a gate a portion is gathered once its layers are computed."""
    filling = Filling(departure, own, scales, wanted, verify)
    own.slots.watch(departure.wake)
    # One write at a time: the transport's own line is shared with other moves, and tokens come in order.
    with ThreadPoolExecutor(1, f"kvferry-write-{departure.peering.name}") as writer:
        try:
            writes = []
            for load in _loads(moves, cut):
                layers = load.portion.layers
                if gate is not None:
                    departure.until("further layer", partial(gate.beyond, layers.stop - 1))
                    gate.settle(layers.stop)
                slot = departure.until("free staging slot", own.slots.take)
                try:
                    departure.say(Want(departure.number, load.ticket))
                    message = filling.fill(load, slot)
                except BaseException:
                    own.slots.give(slot)
                    raise
                writes.append(writer.submit(_write, departure, own, load, slot, message))
            for write in writes:
                write.result()
        finally:
            own.slots.unwatch(departure.wake)


def _loads(moves: Sequence[Move], cut: Portions) -> Iterator[Load]:
    """Layer by layer; all of a move's tokens of a layer before the next move's."""
    ticket = 0
    for some in cut.by_layers():
        for move in moves:
            for portion in some:
                yield Load(move, portion, ticket)
                ticket += 1


def _write(departure: Departure, own: Own, load: Load, slot: int, message: Staged) -> None:
    peering = departure.peering
    try:
        theirs = departure.until("staging slot of the destination", lambda: departure.slots.get(load.ticket))
        ends = np.array(
            [[own.slots.address(slot)], [peering.slot_address(theirs)], [load.nbytes]], dtype=np.int64
        )
        departure.carry(Batch(ends[0], ends[1], ends[2]))
    except Exception as error:
        departure.fail_with(error)
        raise
    finally:
        own.slots.give(slot)
    departure.say(message)
