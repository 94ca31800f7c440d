"""The two ways to run a request."""

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    SPLIT = "split"
    COLOCATED = "colocated"


@dataclass(frozen=True, slots=True)
class Colocated:
    """Prefill and decode on one worker (its id)."""

    worker: str

    @property
    def mode(self) -> Mode:
        return Mode.COLOCATED

    @property
    def key(self) -> str:
        return f"colocated:{self.worker}"


@dataclass(frozen=True, slots=True)
class Split:
    """Prefill on one worker, KV moved over `transport`, decode on another (worker ids)."""

    prefill: str
    decode: str
    transport: str

    @property
    def mode(self) -> Mode:
        return Mode.SPLIT

    @property
    def key(self) -> str:
        return f"split:{self.prefill}>{self.decode}@{self.transport}"


Plan = Colocated | Split
