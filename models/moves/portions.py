"""A staged move in portions that a buffer holds: some whole layers, or some tokens of one layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvferry.models.moves.plan import Move


@dataclass(frozen=True, slots=True)
class Portion:
    """Tokens `first_token` to `first_token + tokens - 1` of the move's, in the layers `layers`."""

    layers: range
    first_token: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Portions:
    """`layers` layers, `layers_each` at a time, in each of these the tokens between neighbours of `walls`.

    `layers_each` is 1 where there are walls inside.
    """

    layers: int
    layers_each: int
    walls: tuple[int, ...]

    def __len__(self) -> int:
        return -(-self.layers // self.layers_each) * (len(self.walls) - 1)

    def by_layers(self) -> Iterator[tuple[Portion, ...]]:
        """Those of the same layers, in the order of their tokens."""
        for first in range(0, self.layers, self.layers_each):
            layers = range(first, min(first + self.layers_each, self.layers))
            yield tuple(Portion(layers, start, end - start) for start, end in pairwise(self.walls))


def portions_of(
    moves: Sequence[Move], buffer_bytes: int | None, most_layers: int | None = None
) -> Portions | None:
    """The same portions for all moves of a sequence, as large as `buffer_bytes` bytes of `wire_dtype` allow.

    `most_layers` (at least 1) limits the layers of each. A layer that does not fit is cut between pages of
    the destination where one fits. None where not even one token of one layer fits.
    """
    move = moves[0]
    layers, tokens = move.src.layers, move.tokens
    each = layers if most_layers is None else min(layers, most_layers)
    if buffer_bytes is None:
        return Portions(layers, each, (0, tokens))
    fits = buffer_bytes // (max(one.wire_bytes for one in moves) // (layers * tokens))
    if fits >= tokens:
        return Portions(layers, min(each, fits // tokens), (0, tokens))
    return Portions(layers, 1, _walls(move, fits)) if fits else None


def _walls(move: Move, most_tokens: int) -> tuple[int, ...]:
    walls = [0]
    while (end := walls[-1] + most_tokens) < move.tokens:
        border = end - (move.dst_at.first + end) % move.dst.page_size
        walls.append(border if border > walls[-1] else end)
    return (*walls, move.tokens)
