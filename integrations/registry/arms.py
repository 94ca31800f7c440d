"""Which arm a request falls into: live, canary, or the safe rule that both are measured by."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from kvferry.integrations.log.record import DecisionRecord, Outcome
from kvferry.integrations.registry.loss import missed
from kvferry.integrations.registry.roles import Roles
from kvferry.policy.base import Policy, make
from kvferry.policy.cluster import Cluster
from kvferry.policy.correction import Corrector
from kvferry.policy.decision import STRUCTURED, Decision
from kvferry.policy.draw import unit
from kvferry.policy.request import Request

ArmName = Literal["live", "canary", "safe"]
SAFE_RULE = "length_threshold(2048)"
SALT = 0x41524D  # a number of its own: policies draw from the same seed


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A version, ready to decide with; `corrector` is None where it is `structured`."""

    version: str = STRUCTURED
    corrector: Corrector | None = None

    def seen(self, cluster: Cluster) -> Cluster:
        """The cluster as this version predicts it."""
        return cluster if self.corrector is None else replace(cluster, corrector=self.corrector)


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """What this router decides with. `complete`: it is what `roles` ask for, nothing could not be loaded."""

    roles: Roles = field(default_factory=Roles)
    live: Model = Model()
    canary: Model | None = None
    shadow: Model | None = None
    complete: bool = True


@dataclass(slots=True, eq=False)
class Stretch:
    """A time in which versions and shares stay as they are, and what each arm has met and missed in it;
    `corrected`: of how many of those requests its model had corrected the predictions."""

    number: int
    running: Running
    shares: dict[str, float]
    requests: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    corrected: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Arm:
    """How one request is decided; `rule` in place of the router's policy, where there is one."""

    name: ArmName
    model: Model
    rule: Policy | None
    stretch: Stretch

    def decide(self, policy: Policy, request: Request, cluster: Cluster) -> Decision:
        """With this arm's model, by `policy` or by the rule in its place. Raises NoPlanError."""
        return (self.rule or policy).decide(request, self.model.seen(cluster))


@dataclass(slots=True, eq=False)
class Arms:
    """Draws arms and counts what came of them.

    `safe_share` of all requests are decided by the safe rule while a learned model is live or canary: random,
    so that arms can be compared. `counted(arm, missed)` is called for every request that says something.
    """

    safe_share: float = 0.01
    counted: Callable[[ArmName, bool], None] = lambda arm, missed: None
    stretch: Stretch = field(init=False)
    changed: set[Stretch] = field(default_factory=set)
    _rule: Policy = field(default_factory=lambda: make(SAFE_RULE))
    _waiting: dict[str, Arm] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stretch = Stretch(0, Running(), {"live": 1.0})

    @property
    def running(self) -> Running:
        return self.stretch.running

    def run(self, running: Running) -> None:
        """From the next request on."""
        shares: dict[str, float] = {}
        if running.roles.learned:
            shares["safe"] = self.safe_share
        if running.canary is not None:
            shares["canary"] = running.roles.canary_share
        shares["live"] = 1.0 - sum(shares.values())
        self.stretch = Stretch(self.stretch.number + 1, running, shares)

    def draw(self, seed: int) -> Arm:
        """The arm of a request, by its own seed."""
        stretch, running = self.stretch, self.stretch.running
        left = unit(seed, SALT)
        if left < stretch.shares.get("safe", 0.0):
            return Arm("safe", Model(), self._rule, stretch)
        left -= stretch.shares.get("safe", 0.0)
        if running.canary is not None and left < stretch.shares["canary"]:
            return Arm("canary", running.canary, None, stretch)
        return Arm("live", running.live, None, stretch)

    def decided(self, request_id: str, arm: Arm) -> None:
        """`told` is to be called for every one."""
        if arm.stretch.running.complete and len(arm.stretch.shares) > 1:
            self._waiting[request_id] = arm

    def told(self, record: DecisionRecord, outcome: Outcome) -> None:
        """What came of a request; once."""
        arm = self._waiting.pop(record.id, None)
        late = missed(record.request, outcome) if arm is not None else None
        if arm is None or late is None:
            return
        stretch = arm.stretch
        stretch.requests[arm.name] = stretch.requests.get(arm.name, 0) + 1
        stretch.missed[arm.name] = stretch.missed.get(arm.name, 0) + late
        spoke = record.model_version not in ("", STRUCTURED) and not record.fallback
        stretch.corrected[arm.name] = stretch.corrected.get(arm.name, 0) + spoke
        self.changed.add(stretch)
        self.counted(arm.name, late)
