"""Measuring one path: first contact, a pass over all sizes, repeats, moves at once."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvferry.integrations.probe import grid
from kvferry.integrations.probe.client import Agent
from kvferry.integrations.probe.messages import Connect, Opened, Wanted
from kvferry.integrations.probe.moves import ROUNDS
from kvferry.models.paths.sample import Sample

__all__ = ["Path", "Scope"]

CROWDS = (2, 4)
CHUNK_S = 1.0
LEAST_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Scope:
    """How much to measure on each path: moves of up to `largest_bytes`, `repeats` of each kind, in about
    `budget_s` seconds."""

    largest_bytes: int = grid.LARGEST_BYTES
    repeats: int = 3
    budget_s: float = 60.0

    @property
    def deadline_s(self) -> float:
        """Of each move."""
        return max(self.budget_s, LEAST_DEADLINE_S)


@dataclass(slots=True)
class Path:
    """From a session of one agent to that of another. What was measured before a failure stays here.

    `tell` is called after each move.
    """

    source: Agent
    target: Agent
    own: Opened
    theirs: Opened
    scope: Scope
    tell: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    samples: list[Sample] = field(default_factory=list)
    first_contact_s: float = 0.0
    _pace: grid.Pace = field(default_factory=grid.Pace)
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    @property
    def spent_s(self) -> float:
        return self.clock() - self._began_s

    async def measure(self) -> None:
        """Raises AgentError."""
        scope, pace = self.scope, self._pace
        asked = Connect(self.theirs.session, self.theirs.metadata, scope.deadline_s)
        async with self.target.awake(self.theirs.session):
            self.first_contact_s = await self.source.connect(self.own.session, asked)
        for size in grid.sizes(scope.largest_bytes):
            if not (cells := grid.worth(pace, size, self.spent_s, scope.budget_s)):
                break
            await self._alone(cells)
        until_s = scope.budget_s * (1.0 - grid.CROWD_SHARE)
        again = grid.repeats(pace, scope.repeats, until_s - self.spent_s)
        for chunk in grid.chunks(again, pace, CHUNK_S):
            if self.spent_s > until_s:
                break
            await self._alone(chunk)
        left_s = min(scope.budget_s * grid.CROWD_SHARE, scope.budget_s - self.spent_s)
        if (cell := grid.crowded(pace, CROWDS, ROUNDS, left_s)) is not None:
            await self._moves(Wanted(cell.moved_bytes, cell.descriptors, crowd) for crowd in CROWDS)

    async def _alone(self, cells: Sequence[grid.Cell]) -> None:
        await self._moves(Wanted(cell.moved_bytes, cell.descriptors) for cell in cells)

    async def _moves(self, wanted: Iterable[Wanted]) -> None:
        moves = self.source.moves(self.own.session, self.theirs.session, tuple(wanted), self.scope.deadline_s)
        async with self.target.awake(self.theirs.session):
            async for sample in moves:
                self.samples.append(sample)
                self._pace.saw(sample)
                self.tell()
