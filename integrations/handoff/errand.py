"""One move of a sequence's KV to one destination process: what goes, in which form, and what it took."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvferry.integrations.handoff.departure import Departure
from kvferry.integrations.handoff.gate import LayerGate
from kvferry.integrations.handoff.messages import Go
from kvferry.integrations.handoff.own import Own
from kvferry.integrations.handoff.peering import Peering
from kvferry.integrations.handoff.record import HandoffRecord
from kvferry.integrations.handoff.scales import Scales, unpacked
from kvferry.integrations.handoff.scattered import send_scattered
from kvferry.integrations.handoff.staged import portions, send_staged
from kvferry.integrations.transports.errors import DeadlinePassed, PeerGone, Refused, TransportError, Wedged
from kvferry.integrations.transports.kernels.fp8 import FP8
from kvferry.integrations.transports.kernels.tensors import torch
from kvferry.models.moves.choose import MOST_DESCRIPTORS, Form, PathCost, scattered_s, staged_s
from kvferry.models.moves.pieces import Pieces
from kvferry.models.moves.place import Place
from kvferry.models.moves.plan import Move
from kvferry.models.moves.portions import Portions
from kvferry.policy.layout import RelationKind

__all__ = ["KVErrand"]


@dataclass(slots=True, eq=False)
class KVErrand:
    """An `Errand`. `cost` is asked for when the form is chosen, unless `form` is given. `told` hears how it
    ended, and whether the path is to blame: not for a room that nobody expects, or layers that are late."""

    own: Own
    src: str
    transport: str
    room: int
    at: Place
    tokens: int
    verify: bool
    form: Form | None
    gate: LayerGate | None
    scales: Scales
    cost: Callable[[], PathCost]
    told: Callable[[HandoffRecord | TransportError, bool], None]
    _moves: tuple[Move, ...] = field(default=(), init=False)

    def carry(self, departure: Departure, go: Go) -> None:
        self.verify |= go.verify
        peering = departure.peering
        self._moves = moves = peering.moves(self.at, Place.of(go.pages, go.first), self.tokens)
        if self.gate is not None:
            self.gate.watch(departure.wake)
        try:
            wanted = self._wanted(go, peering)
            pieces = self._pieces(wanted)
            slot_bytes = min(self.own.slots.slot_bytes, peering.slot_bytes if peering.slots else 0)
            cut = portions(moves, slot_bytes)
            self.form = self._chosen(pieces, cut, slot_bytes)
            if self.form is Form.SCATTERED:
                assert pieces is not None
                send_scattered(departure, self.own, moves, pieces, self.scales, self.verify, self.gate)
            else:
                assert cut is not None
                send_staged(departure, self.own, moves, cut, self.scales, wanted, self.verify, self.gate)
        finally:
            if self.gate is not None:
                self.gate.unwatch(departure.wake)

    def record(self, departure: Departure, total_s: float) -> HandoffRecord:
        tally, moves = departure.tally, self._moves
        return HandoffRecord(
            src=self.src,
            dst=departure.peering.name,
            transport=self.transport,
            relation=str(max((move.relation.kind for move in moves), key=list(RelationKind).index)),
            form=self.form or Form.SCATTERED,
            tokens=self.tokens,
            moved_bytes=tally.moved_bytes,
            src_bytes=sum(move.staging(move.src.dtype).page_bytes for move in moves),
            dst_bytes=sum(move.staging(move.dst.dtype).page_bytes for move in moves),
            descriptors=tally.descriptors,
            batches=tally.batches,
            concurrency=tally.concurrency,
            registration_s=tally.registration_s,
            first_contact_s=tally.first_contact_s,
            post_s=tally.post_s,
            wire_s=tally.wire_s,
            transport_s=tally.transport_s,
            gather_s=tally.gather_s,
            convert_s=tally.convert_s,
            scatter_s=tally.scatter_s,
            verify_s=tally.verify_s,
            total_s=total_s,
            gated=self.gate is not None,
            verified=self.verify,
        )

    def ended(self, outcome: HandoffRecord | TransportError, answered: bool) -> None:
        computed = self.gate is None or self.gate.layers >= self.own.worker[0].layers
        slow = answered and computed and isinstance(outcome, DeadlinePassed)
        self.told(outcome, slow or isinstance(outcome, PeerGone | Wedged))

    def _wanted(self, go: Go, peering: Peering) -> dict[int, torch.Tensor]:
        """Scales that a rank's values must get, of ranks whose values do not have them anyway."""
        if go.scales and len(go.scales) != len(peering.here):
            raise Refused(f"scales of {len(go.scales)} ranks for {len(peering.here)}")
        wanted = {}
        for rank, told in zip(peering.here, go.scales, strict=False):
            pool = peering.worker[rank]
            scales = unpacked(told, pool.layers, pool.heads, self.own.device)
            if scales is not None and pool.dtype in FP8:
                wanted[rank] = scales
        return {rank: scales for rank, scales in wanted.items() if not self._has(rank, scales)}

    def _has(self, dst_rank: int, wanted: torch.Tensor) -> bool:
        for move in self._moves:
            if move.dst_rank != dst_rank:
                continue
            if move.converts:
                return False
            given = self.scales.get(move.src_rank)
            first = move.heads.start - move.dst.first_head
            these = wanted[:, :, first : first + len(move.heads)]
            first = move.heads.start - move.src.first_head
            those = 1.0 if given is None else given[:, :, first : first + len(move.heads)]
            if not bool((these == those).all()):
                return False
        return True

    def _pieces(self, wanted: Scales) -> list[Pieces] | None:
        """None where the values change on the way."""
        if self._moves[0].converts or any(move.dst_rank in wanted for move in self._moves):
            return None
        return [move.pieces(by_layer=self.gate is not None) for move in self._moves]

    def _chosen(self, pieces: list[Pieces] | None, cut: Portions | None, slot_bytes: int) -> Form:
        if pieces is None and self.form is Form.SCATTERED:
            raise Refused("values change on the way: the move must be staged")
        if cut is None:
            if pieces is None or self.form is Form.STAGED:
                largest = max(move.wire_bytes for move in self._moves)
                needed = largest // (self._moves[0].src.layers * self.tokens)
                raise Refused(
                    f"the move must be staged, and {needed} bytes, of one token in one layer, fit no slot "
                    f"of {slot_bytes}"
                )
            return Form.SCATTERED
        if self.form is not None:
            return self.form
        if pieces is None:
            return Form.STAGED
        cost = self.cost()
        staged = sum(staged_s(cost, move, len(cut)) for move in self._moves)
        scattered = sum(scattered_s(cost, some, MOST_DESCRIPTORS) for some in pieces)
        return Form.STAGED if staged < scattered else Form.SCATTERED
