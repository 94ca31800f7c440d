"""The health of several routers as one."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from kvferry.models.health.finding import Finding, State, worst
from kvferry.models.health.judge import judge
from kvferry.models.health.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Found:
    """A finding, and the routers that it is of; `routers` is empty where all together show it."""

    finding: Finding
    routers: tuple[str, ...]


def total(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Their sum."""
    return reduce(Snapshot.plus, snapshots) if snapshots else Snapshot()


def found(snapshots: Sequence[Snapshot]) -> list[Found]:
    """What is wrong with any router, alike ones together and the worst first; and what their sum shows."""
    together = dict[tuple[str, str], list[tuple[str, Finding]]]()
    for one in snapshots:
        for finding in judge(one):
            if finding.state is not State.OK:
                together.setdefault((finding.check, finding.state), []).append((one.router, finding))
    result = [Found(of[0][1], tuple(router for router, _ in of)) for of in together.values()]
    for finding in judge(total(snapshots)):
        same = [of[0][1] for (check, _), of in together.items() if check == finding.check]
        if not same or worst(same).rank < finding.state.rank:
            result.append(Found(finding, ()))
    return sorted(result, key=lambda one: -one.finding.state.rank)
