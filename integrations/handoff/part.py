"""What one source process brings to an arrival."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from kvferry.integrations.handoff.expected import Expected
from kvferry.integrations.handoff.messages import Message
from kvferry.integrations.transports.errors import Refused
from kvferry.models.moves.pool_spec import PoolSpec
from kvferry.models.moves.relate import head_routes, relate

__all__ = ["Part", "Route", "Spent", "routes_between"]

# head_routes makes sets of a worker's heads: a peer must not make them large.
MOST_HEADS = 1 << 16


@dataclass(frozen=True, slots=True)
class Route:
    """The model's heads `heads`, from one source rank to one destination rank."""

    src_rank: int
    dst_rank: int
    src: PoolSpec
    dst: PoolSpec
    heads: range


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds; verifying is part of none of the others."""

    convert_s: float = 0.0
    scatter_s: float = 0.0
    verify_s: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.convert_s + other.convert_s,
            self.scatter_s + other.scatter_s,
            self.verify_s + other.verify_s,
        )


def routes_between(
    src: Sequence[PoolSpec], dst: Sequence[PoolSpec], here: Collection[int]
) -> tuple[Route, ...]:
    """`head_routes` to the destination ranks `here`; `Impossible` where there is no move at all, `Refused`
    for a source worker of too many heads."""
    if len(src) + sum(pool.heads for pool in src) > MOST_HEADS:
        raise Refused(f"a worker of more than {MOST_HEADS} heads")
    routes = head_routes(src, dst)
    for give, take, _ in routes:
        relate(src[give], dst[take])
    return tuple(
        Route(give, take, src[give], dst[take], heads) for give, take, heads in routes if take in here
    )


@dataclass(slots=True, eq=False)
class Part:
    """`writer` names it in the ledgers, `tell` says something to its source (or nothing, where that is gone);
    `missing` are the layers of each pair of ranks that are not in yet.

    `scattering`: the destination itself writes its pages now. `over`: done, or failed; `done`: the source
    was told that all is there.
    """

    writer: str
    tell: Callable[[Message], None]
    agent: str
    expected: Expected
    move: int
    verify: bool
    routes: dict[tuple[int, int], Route]
    missing: dict[tuple[int, int], set[int]] = field(init=False)
    spent: Spent = Spent()
    scattering: bool = False
    over: bool = False
    done: bool = False

    def __post_init__(self) -> None:
        self.missing = {pair: set(range(route.src.layers)) for pair, route in self.routes.items()}

    @property
    def scatterer(self) -> str:
        """The destination's own name in the ledger while it writes the part's pages."""
        return f"{self.writer}/scatter"

    def route(self, src_rank: int, dst_rank: int) -> Route:
        """Raises `Refused` for a pair that is not this part's."""
        route = self.routes.get((src_rank, dst_rank))
        if route is None:
            raise Refused(f"rank {src_rank} has nothing for rank {dst_rank} here")
        return route

    def awaits(self, route: Route, first_layer: int, layers: int) -> range:
        """These layers; raises `Refused` where one is not in the pool, or is in already."""
        if layers < 1 or first_layer < 0 or first_layer + layers > route.src.layers:
            raise Refused(f"layers {first_layer} to {first_layer + layers - 1} of {route.src.layers}")
        wanted = range(first_layer, first_layer + layers)
        for layer in wanted:
            if layer not in self.missing[route.src_rank, route.dst_rank]:
                raise Refused(f"layer {layer} of rank {route.src_rank} to {route.dst_rank} came twice")
        return wanted

    def came(self, route: Route, layers: range, spent: Spent) -> None:
        """The layers are in."""
        self.missing[route.src_rank, route.dst_rank].difference_update(layers)
        self.spent += spent

    def check_whole(self) -> None:
        """Raises `Refused` naming the first pair of ranks of which layers are missing."""
        for (src_rank, dst_rank), layers in self.missing.items():
            if layers:
                raise Refused(f"it ended without layer {min(layers)} of rank {src_rank} to {dst_rank}")
