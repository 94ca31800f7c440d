"""Cells done: what is there already is taken, the rest computed, with a bar on stderr."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.simulate.engine import Failure, Outcome, Outcomes, run_here, unique
from kvferry.integrations.simulate.processes import run_processes
from kvferry.integrations.simulate.progress import progress
from kvferry.integrations.simulate.ray_engine import run_ray
from kvferry.integrations.simulate.results import opened
from kvferry.models.simulator.cell import Cell, run_cell
from kvferry.models.simulator.events_file import without_effect
from kvferry.models.simulator.spec import Watch


@dataclass(frozen=True, slots=True)
class Workforce:
    """`jobs`: processes of the local engine."""

    engine: Literal["local", "ray"] = "local"
    jobs: int = 1
    ray_address: str | None = None

    def outcomes(self, cells: Sequence[Cell], watch: Watch) -> Outcomes:
        if self.engine == "ray":
            return run_ray(cells, self.ray_address)
        if min(self.jobs, len(cells)) > 1:
            return run_processes(cells, min(self.jobs, len(cells)), run_cell)
        return run_here(cells, watch)


def cpus() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def do(cells: Sequence[Cell], workforce: Workforce, out: Path | None = None) -> dict[str, Outcome]:
    """Outcomes by cell key. With `out` each result is kept there as it comes, and those that are there
    are not computed again."""
    todo = unique(cells)
    found: dict[str, Outcome] = {}
    with opened(out) if out else nullcontext() as kept, progress(len(todo)) as (advance, watch):
        if kept is not None:
            found |= {cell.key: kept.done[cell.key] for cell in todo if cell.key in kept.done}
        left = [cell for cell in todo if cell.key not in found]
        advance(len(found), f"{len(found)} were there" if found else "")
        try:
            with closing(workforce.outcomes(left, watch)) as outcomes:
                for cell, outcome in outcomes:
                    found[cell.key] = outcome
                    if kept is not None and not isinstance(outcome, Failure):
                        kept.add(cell, outcome)
                    advance(1, f"{cell.policy} seed {cell.seed}")
        except KeyboardInterrupt:
            _interrupted(len(found), out)
            raise
    return found


def _interrupted(done: int, out: Path | None) -> None:
    if out is not None:
        print(f"kvferry: stopped; {done} cells are in {out}: the same command goes on there", file=sys.stderr)


def complain(cells: Sequence[Cell], outcomes: dict[str, Outcome]) -> None:
    """CommandError when a cell failed, naming the first."""
    failed = [
        (cell, outcome) for cell in unique(cells) if isinstance(outcome := outcomes.get(cell.key), Failure)
    ]
    if failed:
        cell, outcome = failed[0]
        place = ", ".join(f"{name} {value}" for name, value in cell.labels if value is not None)
        more = f" ({len(failed)} of {len(unique(cells))} cells failed)" if len(failed) > 1 else ""
        raise CommandError(f"{place}: {outcome.why}{more}")


def warn(cells: Sequence[Cell], outcomes: Mapping[str, Outcome]) -> None:
    """A line on stderr for each event that did nothing."""
    told: dict[str, None] = {}
    for cell in cells:
        outcome = outcomes.get(cell.key)
        if cell.events and outcome is not None and not isinstance(outcome, Failure):
            told |= dict.fromkeys(without_effect(cell.events, outcome.get("duration_s", float("inf"))))
    for line in told:
        print(f"kvferry: this event had no effect: {line}", file=sys.stderr)


def write_json(value: object, file: Path) -> None:
    """CommandError when `file` cannot be written."""
    try:
        file.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror or error}") from None
