"""What a source and a destination process tell each other about a handoff, as msgpack on one connection.

    source                                   destination
    Hello                                ->
                                         <-  Welcome                   or No(NO_MOVE, reason)
    Begin(move, room)                    ->
                                         <-  Go(pages)                 or No(reason)
    piece by piece:  Landed(rank pair)   ->
    staged:          Want(ticket)        ->
                                         <-  Slot(ticket, slot)
                     Staged(ticket, ...) ->
                                         <-  Scattered(ticket)         the slot is free again
    End(move)                            ->
                                         <-  Complete                  or No(reason)
    Failed(move, drained)                ->  from any point after Begin; Drained follows unless it said so
                                         <-  Cancel(move)              it gives up; Failed follows

A Cancel may overtake a Go or a Slot: what comes for a move that is over is ignored, on both sides.
A `move` is the source's name for one handoff on this connection, at least 0 and never used twice; a `room`
is the bootstrap room that both sides were given for the request.
"""

from typing import Annotated

import msgspec

from kvferry.models.moves.pool_spec import PoolSpec

VERSION = 1
FRAME_BYTES = 16 * 2**20
NO_MOVE = -1

# What no clock measures is not learned from.
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One frame."""


class Hello(Message, frozen=True):
    """`worker`: the pools of all ranks of the source worker; `here`: the ranks that this process has."""

    version: int
    agent: str
    worker: tuple[PoolSpec, ...]
    here: tuple[int, ...]


class Welcome(Message, frozen=True):
    """`metadata` is the transport's: first the regions of the ranks `here`, in their order, then the slots.

    The last region is the staging memory: `slots` slots of `slot_bytes` bytes.
    """

    version: int
    agent: str
    transport: str
    metadata: bytes
    worker: tuple[PoolSpec, ...]
    here: tuple[int, ...]
    slots: int
    slot_bytes: int


class Begin(Message, frozen=True):
    """`verify`: with checksums, one for each page of the destination (`checksums`)."""

    move: int
    room: int
    tokens: int
    verify: bool


class Go(Message, frozen=True):
    """The room's destination: a `Place`. `scales`: float32 [layer, K/V, head of the rank] of each rank `here`
    where an fp8 pool has scales that its values must be in, else empty. `verify`: with checksums after all,
    which either side may ask for."""

    move: int
    pages: list[int]
    first: int
    scales: tuple[bytes, ...] = ()
    verify: bool = False


class No(Message, frozen=True):
    """Refused, or failed at the destination. Nothing of the move is readable there.

    One that answers `Begin` ends the move; `Failed` follows any other.
    """

    move: int
    reason: str


class Landed(Message, frozen=True):
    """All pieces from `src_rank` to `dst_rank` are in the destination's memory.

    `checksums`: xxh3-64 of each page's tokens (`checksums`), 8 bytes each, when the move is verified;
    `scales`: float32 [layer, K/V, head of the move] of fp8 values that keep their dtype.
    """

    move: int
    src_rank: int
    dst_rank: int
    checksums: bytes = b""
    scales: bytes = b""


class Want(Message, frozen=True):
    """A slot, please. `ticket` names one staged write of the move."""

    move: int
    ticket: int


class Slot(Message, frozen=True):
    move: int
    ticket: int
    slot: int


class Staged(Message, frozen=True):
    """Slot `ticket` holds layers `first_layer` to `first_layer + layers - 1` of the rank pair, in each of
    them tokens `first_token` to `first_token + tokens - 1` of the move's, in `wire_dtype`:
    [layer, K/V, token, head, head_dim] of the move's heads.

    The tokens of a layer come in order, without gaps. The rest as in `Landed`, of these layers and tokens:
    the checksum of a page that the slot has only in part is over the tokens that it has. All tokens of a
    layer have the same `scales`.
    """

    move: int
    ticket: int
    src_rank: int
    dst_rank: int
    first_layer: int
    layers: int
    first_token: int
    tokens: int
    wire_dtype: str
    checksums: bytes = b""
    scales: bytes = b""


class Scattered(Message, frozen=True):
    """What was staged is in the pool. Times in seconds, `verify_s` is part of none of the others."""

    move: int
    ticket: int
    convert_s: Seconds
    scatter_s: Seconds
    verify_s: Seconds = 0.0


class End(Message, frozen=True):
    """Everything that this process has for the room was sent."""

    move: int


class Complete(Message, frozen=True):
    """All that this process was expected to send is there, and verified when that was asked."""

    move: int
    verify_s: Seconds = 0.0


class Failed(Message, frozen=True):
    """The source gave the move up. `drained`: its transport writes nothing of it any more."""

    move: int
    reason: str
    drained: bool


class Drained(Message, frozen=True):
    """From now on nothing of a failed move is written."""

    move: int


class Cancel(Message, frozen=True):
    move: int
    reason: str


ToDestination = Hello | Begin | Landed | Want | Staged | End | Failed | Drained
ToSource = Welcome | Go | No | Slot | Scattered | Complete | Cancel
