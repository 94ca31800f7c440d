"""One request of a simulation, from its arrival to its end."""

from dataclasses import dataclass, field

from kvferry.models.calibration import Bias
from kvferry.models.simulator.job import Job
from kvferry.models.simulator.network import Move
from kvferry.models.terms.way import Way
from kvferry.policy.candidates import Candidates
from kvferry.policy.decision import Decision
from kvferry.policy.link import Link
from kvferry.policy.request import Request

NO_BIAS = Bias()


@dataclass(frozen=True, slots=True)
class Carriage:
    """What moving a split request's KV takes, and over which link (`policy.candidates` has the meanings)."""

    link: Link
    relation: str
    s_per_byte: float
    wire_bytes: float
    window_wire_bytes: float
    window_tokens: float
    fixed_bytes: float
    descriptors_per_token: float
    merged_descriptors: float
    gamma_s: float
    repack_s_per_byte: float

    @classmethod
    def of(cls, table: Candidates, row: int) -> "Carriage":
        place = table.link_index[row]
        return cls(
            table.links[place],
            table.link_relations[place],
            *(float(getattr(table, name)[row]) for name in cls.__slots__[2:]),
        )


@dataclass(slots=True, eq=False)
class Trip:
    """`job` is where the output comes from, `prefill` the other half of a split. `key` names the current
    attempt; `excluded` are plans and workers that failed it. `bias`: what its predictions included; `alone`:
    nothing of the router's own was to be prefilled before it."""

    row: int
    request: Request
    blocks: list[int]
    arrival_s: float
    decision: Decision | None = None
    pre: int = -1
    dec: int = -1
    carriage: Carriage | None = None
    split: bool = False
    job: Job | None = None
    prefill: Job | None = None
    move: Move | None = None
    tries: int = 0
    excluded: set[str] = field(default_factory=set)
    bias: Bias = NO_BIAS
    way: Way | None = None
    alone: bool = False
    skip_tokens: int = 0
    computed_s: float = 0.0
    arrived_s: float = 0.0
    lost: bool = False
    ended: bool = False

    @property
    def key(self) -> str:
        return f"{self.row}/{self.tries}"

    def needs(self, place: int) -> bool:
        """Whether it is lost when that worker dies: a prefill worker whose KV has left is needed no more."""
        return place == self.dec or (place == self.pre and not self.arrived_s)
