"""A source that a test drives by hand, message by message, so that it can do what no source should."""

import itertools
from typing import Any, TypeVar

import numpy as np
import torch

from kvferry.integrations.handoff import messages as m
from kvferry.integrations.handoff.channel import Channel, connect
from kvferry.integrations.handoff.checksums import page_checksums
from kvferry.integrations.handoff.part import Route, routes_between
from kvferry.integrations.transports.base import Batch, Region
from kvferry.integrations.transports.errors import DeadlinePassed
from kvferry.integrations.transports.kernels.tensors import DTYPES
from kvferry.integrations.transports.local import Local
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec
from kvferry.models.moves.runs import pieces_between
from kvferry.policy.layout import LayoutOrder

WAIT_S = 10.0
MEMORY_BYTES = 1 << 20
moves = itertools.count()

Heard = TypeVar("Heard", bound=m.Message)


def random_kv(spec: PoolSpec, heads: int, tokens: int, seed: int = 1) -> torch.Tensor:
    """The whole model's, [layer, K/V, token, head, element]; positive, so that no byte of it is zero."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(spec.layers, 2, tokens, heads, spec.head_dim, generator=generator) + 0.5
    return values.to(DTYPES[spec.dtype])


class HandSource:
    """`here`: the ranks that it has, all where not given. It writes out of one buffer."""

    def __init__(
        self,
        port: int,
        worker: tuple[PoolSpec, ...],
        here: tuple[int, ...] | None = None,
        hello: m.Message | None = None,
    ) -> None:
        here = tuple(range(len(worker))) if here is None else here
        self.channel: Channel[Any] = Channel(connect("127.0.0.1", port, WAIT_S), m.ToSource)
        self.worker, self.here = worker, here
        self.say(hello or m.Hello(m.VERSION, "hand", worker, here))
        self.welcome: Any = self.channel.receive(WAIT_S)
        self.memory = np.zeros(MEMORY_BYTES, np.uint8)
        self.transport = Local("hand")
        if isinstance(self.welcome, m.Welcome):
            self.transport.register((Region(self.memory.ctypes.data, MEMORY_BYTES),))
            self.peer = self.transport.connect("destination", self.welcome.metadata)

    def close(self) -> None:
        self.channel.close()
        self.transport.close()

    def say(self, message: m.Message) -> None:
        self.channel.send(message)

    def hear(self, kind: type[Heard]) -> Heard:
        heard = self.channel.receive(WAIT_S)
        assert isinstance(heard, kind), heard
        return heard

    def hears_nothing(self, for_s: float = 0.1) -> bool:
        try:
            heard = self.channel.receive(for_s)
        except DeadlinePassed:
            return True
        raise AssertionError(heard)

    def begin(self, room: int, tokens: int, verify: bool = False) -> int:
        move = next(moves)
        self.say(m.Begin(move, room, tokens, verify))
        return move

    def routes(self, dst_worker: tuple[PoolSpec, ...], here: tuple[int, ...] | None = None) -> list[Route]:
        """Those of this process."""
        dst_here = range(len(dst_worker)) if here is None else here
        return [
            route
            for route in routes_between(self.worker, dst_worker, dst_here)
            if route.src_rank in self.here
        ]

    def write(self, address: int, content: bytes) -> None:
        self.memory[: len(content)] = np.frombuffer(content, np.uint8)
        batch = [np.array([one], np.int64) for one in (self.memory.ctypes.data, address, len(content))]
        self.transport.submit(self.peer, Batch(*batch)).wait(WAIT_S)

    def write_pool(self, route: Route, go: m.Go, staged: torch.Tensor) -> None:
        """A route's KV in staged form, piece by piece to where it belongs."""
        tokens = staged.shape[2]
        dst = route.dst
        buffer = PoolSpec(
            dst.layers, len(route.heads), dst.head_dim, 1, tokens, dst.dtype, LayoutOrder.PAGE_FIRST,
            route.heads.start,
        )  # fmt: skip
        pieces = pieces_between(buffer, Place.of([0]), dst, Place.of(go.pages, go.first), tokens, route.heads)
        content = bytes(staged.contiguous().view(torch.uint8).flatten().tolist())
        self.memory[: len(content)] = np.frombuffer(content, np.uint8)
        here = self.welcome.here
        before = sum(len(self.welcome.worker[rank].region_bytes) for rank in here if rank < route.dst_rank)
        bases = np.array([region.address for region in self.peer.regions], np.int64)[before:]
        batch = Batch(
            self.memory.ctypes.data + pieces.src_offset,
            bases[pieces.dst_region] + pieces.dst_offset,
            pieces.nbytes,
        )
        self.transport.submit(self.peer, batch).wait(WAIT_S)

    def write_slot(self, slot: int, staged: torch.Tensor) -> None:
        content = bytes(staged.contiguous().view(torch.uint8).flatten().tolist())
        self.write(self.peer.regions[-1].address + slot * self.welcome.slot_bytes, content)

    def land(self, move: int, route: Route, go: m.Go, kv: torch.Tensor) -> None:
        """The route's heads of the whole model's `kv`, and word that they are there."""
        staged = kv[:, :, :, route.heads.start : route.heads.stop].contiguous()
        self.write_pool(route, go, staged)
        sums = page_checksums(staged, go.first, route.dst.page_size) if go.verify else b""
        self.say(m.Landed(move, route.src_rank, route.dst_rank, sums))

    def stage(
        self,
        move: int,
        route: Route,
        go: m.Go,
        kv: torch.Tensor,
        layers: range,
        ticket: int,
        tokens: range | None = None,
    ) -> m.Staged:
        """The same for some layers, and tokens of them (all where not given), through a slot, but for saying
        the message, which is returned."""
        tokens = range(kv.shape[2]) if tokens is None else tokens
        self.say(m.Want(move, ticket))
        slot = self.hear(m.Slot)
        assert (slot.move, slot.ticket) == (move, ticket)
        heads = slice(route.heads.start, route.heads.stop)
        staged = kv[layers.start : layers.stop, :, tokens.start : tokens.stop, heads].contiguous()
        self.write_slot(slot.slot, staged)
        sums = page_checksums(staged, go.first + tokens.start, route.dst.page_size) if go.verify else b""
        pair = route.src_rank, route.dst_rank
        some = layers.start, len(layers), tokens.start, len(tokens)
        return m.Staged(move, ticket, *pair, *some, route.src.dtype, sums)
