"""Whether a learned version does worse than what it is compared with, and is to be rolled back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvferry.integrations.registry.arms import ArmName
from kvferry.integrations.registry.counts import Counts
from kvferry.integrations.registry.roles import Roles
from kvferry.models.offpolicy.sequential import log_evidence
from kvferry.policy.decision import STRUCTURED

# How often, of promotions of versions that are as good as the others, one is rolled back at most, however
# long it runs: shared by all comparisons.
ALPHA = 0.01


@dataclass(frozen=True, slots=True)
class Verdict:
    """`version` is to play no role any more."""

    version: str
    reason: str


def comparisons(roles: Roles) -> list[tuple[ArmName, ArmName]]:
    """Which arm may not miss more often than which: a canary than live and the safe rule, live than the
    latter."""
    found: list[tuple[ArmName, ArmName]] = []
    if roles.canary:
        found += [("canary", "safe"), ("canary", "live")]
    if roles.live != STRUCTURED:
        found.append(("live", "safe"))
    return found if roles.learned else []


def judge(roles: Roles, counts: Sequence[Counts], alpha: float = ALPHA) -> Verdict | None:
    """None while nothing is to be held against any version."""
    pairs = comparisons(roles)
    for name, other in pairs:
        evidence = log_evidence((one.arm(name), one.arm(other)) for one in counts)
        if evidence >= math.log(len(pairs) / alpha):
            version = roles.canary if name == "canary" else roles.live
            against = "the safe rule" if other == "safe" else f"live {roles.live}"
            return Verdict(
                version,
                f"{name} {version} misses its objectives more often than {against}: "
                f"{_missed(counts, name)} requests, against {_missed(counts, other)}",
            )
    return None


def _missed(counts: Sequence[Counts], name: ArmName) -> str:
    arms = [one.arm(name) for one in counts]
    return f"{sum(arm.missed for arm in arms)} of {sum(arm.requests for arm in arms)}"
