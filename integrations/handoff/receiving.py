"""What a source says that it wrote: checked against what it may write, then brought into the pool."""

from kvferry.integrations.handoff.messages import Landed, Scattered, Staged
from kvferry.integrations.handoff.own import Own
from kvferry.integrations.handoff.part import Part, Route
from kvferry.integrations.handoff.rooms import Rooms
from kvferry.integrations.handoff.scales import unpacked
from kvferry.integrations.handoff.scattering import Target
from kvferry.integrations.transports.errors import Refused
from kvferry.integrations.transports.kernels.fp8 import FP8
from kvferry.integrations.transports.kernels.tensors import DTYPES, torch
from kvferry.models.moves.portions import Portion

__all__ = ["Receiving"]


class Receiving:
    """Of one connection; raises `Refused` for what a source may not do and `Corrupt` for wrong bytes."""

    def __init__(self, own: Own, rooms: Rooms) -> None:
        self._own, self._rooms = own, rooms

    def landed(self, part: Part, message: Landed) -> None:
        """All of a pair of ranks, written into the pool by the source."""
        route = part.route(message.src_rank, message.dst_rank)
        every = part.awaits(route, 0, route.src.layers, 0, part.expected.tokens)
        target = self._target(part, route, every)
        scales = self._scales(message.scales, route, route.src.dtype, len(every.layers))
        spent = target.landed(scales, message.checksums if part.verify else None)
        self._rooms.came(part, route, every, spent, None)

    def staged(self, part: Part, message: Staged) -> None:
        """Layers of a pair of ranks, or tokens of them, in a slot."""
        route = part.route(message.src_rank, message.dst_rank)
        portion = part.awaits(route, message.first_layer, message.layers, message.first_token, message.tokens)
        layers = portion.layers
        target = self._target(part, route, portion)
        dtype = message.wire_dtype
        if dtype not in (route.src.dtype, route.dst.dtype):
            raise Refused(f"staged in {dtype[:50]}, from {route.src.dtype} to {route.dst.dtype}")
        shape = (len(layers), 2, portion.tokens, len(route.heads), route.dst.head_dim)
        nbytes = target.nbytes(len(layers), DTYPES[dtype].itemsize)
        if nbytes > self._own.slots.slot_bytes:
            raise Refused(f"{nbytes} bytes staged in slots of {self._own.slots.slot_bytes}")
        scales = self._scales(message.scales, route, dtype, len(layers))
        with self._rooms.reading(part, message.ticket) as slot:
            if slot is None:
                return
            staged = self._own.slots.view(slot, shape, dtype)
            try:
                spent = target.scatter(staged, scales, message.checksums if part.verify else None)
            except ValueError as error:
                raise Refused(f"rank {route.src_rank} to {route.dst_rank}: {error}") from error
        answer = Scattered(part.move, message.ticket, spent.convert_s, spent.scatter_s, spent.verify_s)
        self._rooms.came(part, route, portion, spent, answer)

    def _target(self, part: Part, route: Route, portion: Portion) -> Target:
        return Target(route, self._own.pools[route.dst_rank], part.expected, portion)

    def _scales(self, told: bytes, route: Route, dtype: str, layers: int) -> torch.Tensor | None:
        device = self._own.pools[route.dst_rank].device
        scales = unpacked(told, layers, len(route.heads), device)
        if scales is None:
            return None
        if dtype not in FP8:
            raise Refused(f"scales of {dtype}")
        if not bool(((scales > 0) & torch.isfinite(scales)).all()):
            raise Refused("scales that are not positive and finite")
        return scales
