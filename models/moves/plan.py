"""A move of a sequence's KV from one worker's pools to another's, rank by rank."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.pieces import Pieces
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec
from kvferry.models.moves.relate import head_routes, relate
from kvferry.models.moves.runs import pieces_between
from kvferry.policy.layout import LayoutOrder, Relation


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """What one source rank sends to one destination rank: the model's heads `heads` of `tokens` tokens.

    It goes piece by piece (`pieces`, only where the dtype stays), or staged: `gather` into a buffer laid
    out as `staging(src.dtype)`, conversion to `wire_dtype` where that is another, one `bulk` write, at the
    other side conversion to `dst.dtype` where that is another, `scatter` out of `staging(dst.dtype)`.
    """

    src_rank: int
    dst_rank: int
    src: PoolSpec
    dst: PoolSpec
    src_at: Place
    dst_at: Place
    tokens: int
    heads: range
    relation: Relation

    @property
    def converts(self) -> bool:
        return self.src.dtype != self.dst.dtype

    @property
    def wire_dtype(self) -> str:
        """The smaller of the two, the destination's where they are equal: fewer bytes travel."""
        smaller = self.src.element_bytes < self.dst.element_bytes
        return self.src.dtype if smaller else self.dst.dtype

    @property
    def wire_bytes(self) -> int:
        return self.staging(self.wire_dtype).page_bytes

    def staging(self, dtype: str) -> PoolSpec:
        """The bulk buffer: one region [layers, 2, tokens, heads, head_dim], layer after layer."""
        return PoolSpec(
            self.src.layers,
            len(self.heads),
            self.src.head_dim,
            pages=1,
            page_size=self.tokens,
            dtype=dtype,
            order=LayoutOrder.PAGE_FIRST,
            first_head=self.heads.start,
        )

    def pieces(self, by_layer: bool = True) -> Pieces:
        """From pool to pool, neighbours joined. Impossible where the dtype changes.

        `by_layer` False lets whole pages of page-first pools go in one piece, after the last layer.
        """
        if self.converts:
            raise Impossible(f"KV dtype {self.src.dtype} to {self.dst.dtype} does not go byte by byte")
        return pieces_between(
            self.src, self.src_at, self.dst, self.dst_at, self.tokens, self.heads, by_layer=by_layer
        )

    def gather(self) -> Pieces:
        """From the source pool to a buffer in the source's dtype."""
        buffer = self.staging(self.src.dtype)
        return pieces_between(self.src, self.src_at, buffer, Place.of([0]), self.tokens, self.heads)

    def bulk(self, by_layer: bool = False) -> Pieces:
        """From buffer to buffer in `wire_dtype`: one piece, or one for each layer."""
        buffer, place = self.staging(self.wire_dtype), Place.of([0])
        return pieces_between(buffer, place, buffer, place, self.tokens, self.heads, by_layer=by_layer)

    def scatter(self) -> Pieces:
        """From a buffer in the destination's dtype to the destination pool."""
        buffer = self.staging(self.dst.dtype)
        return pieces_between(buffer, Place.of([0]), self.dst, self.dst_at, self.tokens, self.heads)


def plan(
    src: Sequence[PoolSpec], src_at: Place, dst: Sequence[PoolSpec], dst_at: Place, tokens: int
) -> tuple[Move, ...]:
    """Moves that together fill every destination rank's heads of `tokens` tokens, each byte once.

    `src` and `dst` are all ranks of a worker; exactly `tokens` tokens are written, so a caller that wants
    whole pages rounds up. No tokens, no moves. Impossible, with the reason, where it cannot be done.
    """
    routes = head_routes(src, dst)
    relations = [relate(src[give], dst[take]) for give, take, _ in routes]
    if tokens < 0:
        raise Impossible(f"{tokens} tokens to move")
    if tokens == 0:
        return ()
    src_at.check(src[0], tokens, "source", written=False)
    dst_at.check(dst[0], tokens, "destination", written=True)
    return tuple(
        Move(give, take, src[give], dst[take], src_at, dst_at, tokens, heads, relation)
        for (give, take, heads), relation in zip(routes, relations, strict=True)
    )
