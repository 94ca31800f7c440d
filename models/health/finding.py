"""One thing that was looked at: how it is, and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """`warn`: learning goes on, worse than it could. `bad`: something is dead, or predictions mislead."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"

    @property
    def rank(self) -> int:
        return list(State).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """`check`: its name, the same whatever is found. `says`: one plain sentence; `do`: what helps, "" where
    nothing needs to be done."""

    check: str
    state: State
    says: str
    do: str = ""


def worst(findings: list[Finding]) -> State:
    return max((finding.state for finding in findings), key=lambda state: state.rank, default=State.OK)


def grade(value: float, warn: float, bad: float) -> State:
    """By two thresholds, the second one the higher."""
    return State.BAD if value >= bad else State.WARN if value >= warn else State.OK
