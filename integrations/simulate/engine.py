"""Who computes cells: this process, processes of its own, or a Ray cluster."""

import logging
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kvferry.models.simulator.cell import Cell, Result, run_cell
from kvferry.models.simulator.spec import Watch

log = logging.getLogger(__name__)


class Labelled(Protocol):
    """Something to compute: equal keys are equal results, `labels` say what it is."""

    @property
    def key(self) -> str: ...

    @property
    def labels(self) -> tuple[tuple[str, str | int | float | None], ...]: ...


L = TypeVar("L", bound=Labelled)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a cell has no result."""

    why: str


Outcome = Result | Failure
Outcomes = Generator[tuple[Cell, Outcome], None, None]
"""Cells in the order in which they end; closing the iterator ends the work."""


def failure(cell: Labelled, error: BaseException) -> Failure:
    """What is told of an error inside a cell; the trace goes to the debug log."""
    log.debug("cell %s failed", dict(cell.labels), exc_info=error)
    return Failure(f"{type(error).__name__}: {error}")


def unique(cells: Iterable[L]) -> list[L]:
    """One cell of each key, the first."""
    found: dict[str, L] = {}
    for cell in cells:
        found.setdefault(cell.key, cell)
    return list(found.values())


def run_here(cells: Sequence[Cell], watch: Watch | None = None) -> Outcomes:
    """One after the other in this process."""
    for cell in cells:
        outcome: Outcome
        try:
            outcome = run_cell(cell, watch)
        except Exception as error:  # noqa: BLE001 - one broken cell must not cost the others of a night's grid
            outcome = failure(cell, error)
        yield cell, outcome
