"""Piece by piece, or gathered into one bulk write: whichever is predicted to be faster."""

import math
from dataclasses import dataclass
from enum import StrEnum

from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.pieces import Pieces
from kvferry.models.moves.plan import Move
from kvferry.models.moves.portions import portions_of

# A Mooncake TCP lane holds 1024 + 1024 pending descriptors per peer and may never recover from more.
MOST_DESCRIPTORS = 1024


class Form(StrEnum):
    SCATTERED = "scattered"
    STAGED = "staged"


@dataclass(frozen=True, slots=True)
class PathCost:
    """What a path costs: seconds per batch, byte and descriptor, and seconds per byte of what is done around.

    `convert_s_per_byte` is per byte of the larger of the two dtypes; `acknowledgement_s` is from the end of
    the remote scatter until the source knows of it, on top of what every move has.
    """

    alpha_s: float
    s_per_byte: float
    s_per_descriptor: float
    gather_s_per_byte: float
    scatter_s_per_byte: float
    acknowledgement_s: float = 0.0
    convert_s_per_byte: float = 0.0

    @property
    def crossover_bytes(self) -> float:
        """B* = gamma / (gather + scatter time per byte): scattered blocks smaller than it go better staged.

        Source: facts on Mooncake and NIXL, 4-16 KiB for NIXL over CMA, 32-64 KiB for Mooncake over TCP.
        It leaves out alpha and the acknowledgement, which the prediction has.
        """
        around = self.gather_s_per_byte + self.scatter_s_per_byte
        return self.s_per_descriptor / around if around > 0.0 else math.inf


@dataclass(frozen=True, slots=True)
class Choice:
    """The faster form, and what each is predicted to take.

    `scattered_s` is infinite where the dtype changes, `staged_s` where the buffer does not hold one token of
    one layer. `portions`: buffers full in the staged form, 0 where it is no use. `descriptors`: pieces of
    the scattered form.
    """

    form: Form
    scattered_s: float
    staged_s: float
    portions: int
    descriptors: int

    @property
    def predicted_s(self) -> float:
        return min(self.scattered_s, self.staged_s)


def choose(
    move: Move,
    pieces: Pieces | None,
    cost: PathCost,
    buffer_bytes: int | None = None,
    most_descriptors: int = MOST_DESCRIPTORS,
) -> Choice:
    """The form of `move` that `cost` predicts to be faster, the scattered one where they are equal.

    `pieces` are the move's own, None where its dtype changes; `buffer_bytes` is what a staging buffer holds
    of what is on the wire, the smaller one of the two sides', None for as much as is asked. Impossible
    where neither form can be.
    """
    scattered = math.inf if pieces is None else scattered_s(cost, pieces, most_descriptors)
    cut = portions_of((move,), buffer_bytes)
    portions = 0 if cut is None else len(cut)
    staged = staged_s(cost, move, portions) if portions else math.inf
    if math.isinf(scattered) and math.isinf(staged):
        raise Impossible(
            f"KV dtype {move.src.dtype} to {move.dst.dtype} needs a staging buffer, and a token of "
            f"one layer does not fit {buffer_bytes} bytes"
        )
    form = Form.STAGED if staged < scattered else Form.SCATTERED
    return Choice(form, scattered, staged, portions, 0 if pieces is None else len(pieces))


def scattered_s(cost: PathCost, pieces: Pieces, most_descriptors: int) -> float:
    """alpha * batches + beta * bytes + gamma * descriptors."""
    batches = -(-len(pieces) // most_descriptors)
    return cost.alpha_s * batches + cost.s_per_byte * pieces.moved_bytes + cost.s_per_descriptor * len(pieces)


def staged_s(cost: PathCost, move: Move, portions: int) -> float:
    """gather + convert + beta * bytes + scatter + (alpha + gamma + acknowledgement) * portions.

    Gathering is over the source's bytes and scattering over the destination's; nothing overlaps.
    """
    src_bytes = move.staging(move.src.dtype).page_bytes
    dst_bytes = move.staging(move.dst.dtype).page_bytes
    return (
        cost.gather_s_per_byte * src_bytes
        + cost.convert_s_per_byte * (max(src_bytes, dst_bytes) if move.converts else 0)
        + cost.s_per_byte * move.wire_bytes
        + cost.scatter_s_per_byte * dst_bytes
        + (cost.alpha_s + cost.s_per_descriptor + cost.acknowledgement_s) * portions
    )
