"""What one source process brings to an arrival."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from kvferry.integrations.handoff.expected import Expected
from kvferry.integrations.handoff.messages import Message
from kvferry.integrations.transports.errors import Refused
from kvferry.models.moves.pool_spec import PoolSpec
from kvferry.models.moves.portions import Portion
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
    `arrived` are the tokens of each layer, of each pair of ranks, that are in: they come in order.

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
    arrived: dict[tuple[int, int], list[int]] = field(init=False)
    spent: Spent = Spent()
    scattering: bool = False
    over: bool = False
    done: bool = False

    def __post_init__(self) -> None:
        self.arrived = {pair: [0] * route.src.layers for pair, route in self.routes.items()}

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

    def awaits(self, route: Route, first_layer: int, layers: int, first_token: int, tokens: int) -> Portion:
        """These tokens of these layers; raises `Refused` where they are not what comes next in each layer."""
        every, pair = self.expected.tokens, f"rank {route.src_rank} to {route.dst_rank}"
        if layers < 1 or first_layer < 0 or first_layer + layers > route.src.layers:
            raise Refused(f"layers {first_layer} to {first_layer + layers - 1} of {route.src.layers}")
        if tokens < 1 or first_token < 0 or first_token + tokens > every:
            raise Refused(f"tokens {first_token} to {first_token + tokens - 1} of {every}")
        wanted = range(first_layer, first_layer + layers)
        for layer in wanted:
            next_token = self.arrived[route.src_rank, route.dst_rank][layer]
            if first_token < next_token:
                raise Refused(f"token {first_token} of layer {layer} of {pair} came twice")
            if first_token > next_token:
                raise Refused(
                    f"token {first_token} of layer {layer} of {pair} came before token {next_token}"
                )
        return Portion(wanted, first_token, tokens)

    def came(self, route: Route, portion: Portion, spent: Spent) -> None:
        """It is in."""
        arrived = self.arrived[route.src_rank, route.dst_rank]
        for layer in portion.layers:
            arrived[layer] = portion.first_token + portion.tokens
        self.spent += spent

    def check_whole(self) -> None:
        """Raises `Refused` naming the first pair of ranks of which tokens are missing."""
        for (src_rank, dst_rank), arrived in self.arrived.items():
            for layer, tokens in enumerate(arrived):
                if tokens < self.expected.tokens:
                    raise Refused(
                        f"it ended without token {tokens} of layer {layer} of rank {src_rank} to {dst_rank}"
                    )
