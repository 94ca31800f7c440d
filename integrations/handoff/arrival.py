"""A room that is expected: its pages, and how its owner waits for them."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvferry.integrations.handoff.expected import Expected
from kvferry.integrations.handoff.part import Part
from kvferry.integrations.handoff.scales import Scales
from kvferry.integrations.transports.errors import Cancelled, DeadlinePassed, TransportError
from kvferry.models.moves.pool_spec import PoolSpec

__all__ = ["Arrival", "Arrived"]


@dataclass(frozen=True, slots=True)
class Arrived:
    """KV that is there, and readable.

    `scales`: float32 [layer, K/V, head of the rank] of each fp8 pool, 1 where the source had none; empty for
    other dtypes. `waited_s` is from `expect` to the first source's beginning, `moved_s` from there to the
    end; what the destination did meanwhile, `convert_s`, `scatter_s` and `verify_s`, is summed over its
    connections, which work at the same time.
    """

    room: int
    pages: tuple[int, ...]
    tokens: int
    scales: Scales
    verified: bool
    sources: tuple[str, ...]
    waited_s: float
    moved_s: float
    convert_s: float
    scatter_s: float
    verify_s: float


@dataclass(slots=True, eq=False)
class Arrival:
    """One expected room. Its owner calls `wait`, `cancel` and reads `over`; the rest is its destination's.

    `key` names it in the ledger of pages; `worker` is the source's, once one came.
    """

    expected: Expected
    key: str
    fail: Callable[["Arrival", TransportError], None]
    worker: tuple[PoolSpec, ...] | None = None
    parts: list[Part] = field(default_factory=list)
    since_s: float = field(default_factory=time.monotonic)
    began_s: float | None = None
    error: TransportError | None = None
    arrived: Arrived | None = None
    _over: threading.Event = field(default_factory=threading.Event)

    def wait(self, deadline_s: float) -> Arrived:
        """Block until the KV is readable, at most `deadline_s` seconds from now.

        Raises `DeadlinePassed` (given up: the sources are told, the pages quarantined), `Cancelled`,
        `PeerGone`, `GivenUp`, `Corrupt` naming a page, or `Refused` where a source did what it must not;
        `may_still_write` says whether pages went into quarantine. Waiting again says the same again.
        """
        if not self._over.wait(max(deadline_s, 0.0)):
            self.fail(self, DeadlinePassed(f"room {self.room}: not there after {deadline_s:g} s"))
        if self.error is not None:
            raise self.error
        assert self.arrived is not None
        return self.arrived

    def cancel(self) -> None:
        """Give up. Pages that a source may write stay in quarantine; what has arrived stays readable."""
        self.fail(self, Cancelled(f"room {self.room}: cancelled"))

    @property
    def room(self) -> int:
        return self.expected.room

    @property
    def over(self) -> bool:
        """Arrived, or failed."""
        return self.error is not None or self.arrived is not None

    def entered(self, worker: tuple[PoolSpec, ...], part: Part) -> None:
        """A source came."""
        self.worker = worker
        self.began_s = self.began_s or time.monotonic()
        self.parts.append(part)

    def failed(self, error: TransportError) -> None:
        """The end, once."""
        self.error = error
        self._over.set()

    def completed(self) -> None:
        """The end, once: all of `parts` are done."""
        now_s = time.monotonic()
        began_s = now_s if self.began_s is None else self.began_s
        self.arrived = Arrived(
            room=self.room,
            pages=tuple(self.expected.at.pages.tolist()),
            tokens=self.expected.tokens,
            scales=self.expected.scales,
            verified=all(part.verify for part in self.parts),
            sources=tuple(part.agent for part in self.parts),
            waited_s=began_s - self.since_s,
            moved_s=now_s - began_s,
            convert_s=sum(part.spent.convert_s for part in self.parts),
            scatter_s=sum(part.spent.scatter_s for part in self.parts),
            verify_s=sum(part.spent.verify_s for part in self.parts),
        )
        self._over.set()
