"""What lies between two pools, and which source rank gives which heads to which destination rank."""

from collections.abc import Sequence

from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.pool_spec import PoolSpec
from kvferry.policy.layout import Relation, RelationKind

CONVERTIBLE = frozenset({"float32", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2"})


def relate(src: PoolSpec, dst: PoolSpec) -> Relation:
    """Relation of one source rank's pool to one destination rank's, for the heads that they share.

    direct: whole blocks as they are. sliced: some of a token's heads. repack: another page size, order
    or dtype; `steps` says which, heads included. `descriptors_per_token` is of scattered pages, piece by
    piece: 2 * layers for every token where heads are cut, else for every page of the smaller size.
    Impossible where layers or head_dim differ, or the dtype has no conversion.
    """
    if src.layers != dst.layers:
        raise Impossible(f"{src.layers} layers in the source, {dst.layers} in the destination")
    if src.head_dim != dst.head_dim:
        raise Impossible(f"head_dim {src.head_dim} in the source, {dst.head_dim} in the destination")
    if src.dtype != dst.dtype and not CONVERTIBLE.issuperset((src.dtype, dst.dtype)):
        raise Impossible(f"KV dtype {src.dtype} cannot be converted to {dst.dtype}")
    cut = (src.first_head, src.heads) != (dst.first_head, dst.heads)
    steps = tuple(
        f"{name} {before} to {after}"
        for name, before, after in (
            ("page_size", src.page_size, dst.page_size),
            ("order", src.order, dst.order),
            ("dtype", src.dtype, dst.dtype),
        )
        if before != after
    )
    kind = RelationKind.REPACK if steps else RelationKind.SLICED if cut else RelationKind.DIRECT
    if cut:
        steps += (f"heads {src.heads} to {dst.heads}",)
    run = 1 if cut else min(src.page_size, dst.page_size)
    return Relation(kind, descriptors_per_token=2 * src.layers / run, steps=steps)


def head_routes(src: Sequence[PoolSpec], dst: Sequence[PoolSpec]) -> list[tuple[int, int, range]]:
    """(source rank, destination rank, the model's heads) so that every destination head has one source.

    Among source ranks that have a head, the one that can give the most further heads goes first, then
    the one that gives least so far, then the lowest: replicas share the work. Impossible where a side is
    empty, its ranks differ in more than their heads, or the sides do not hold the same heads.
    """
    for name, side in (("source", src), ("destination", dst)):
        if not side:
            raise Impossible(f"{name}: no ranks")
        if len({_but_heads(pool) for pool in side}) > 1:
            raise Impossible(f"{name}: ranks differ in layers, head_dim, pages, page size, dtype or order")
    held, wanted = _heads_of(src), _heads_of(dst)
    if held != wanted:
        raise Impossible(f"KV heads differ: {_told(held)} in the source, {_told(wanted)} in the destination")
    given = [0] * len(src)
    routes = []
    for dst_rank, pool in enumerate(dst):
        head, end = pool.first_head, pool.first_head + pool.heads
        while head < end:
            _, given_so_far, rank = min(
                (-min(end, one.first_head + one.heads), given[rank], rank)
                for rank, one in enumerate(src)
                if one.first_head <= head < one.first_head + one.heads
            )
            until = min(end, src[rank].first_head + src[rank].heads)
            given[rank] = given_so_far + until - head
            routes.append((rank, dst_rank, range(head, until)))
            head = until
    return routes


def _but_heads(pool: PoolSpec) -> tuple[object, ...]:
    return (pool.layers, pool.head_dim, pool.pages, pool.page_size, pool.dtype, pool.order)


def _heads_of(side: Sequence[PoolSpec]) -> set[int]:
    return {head for pool in side for head in range(pool.first_head, pool.first_head + pool.heads)}


def _told(heads: set[int]) -> str:
    return f"{len(heads)} ({min(heads)} to {max(heads)})"
