"""Whether a real link was learned, left and returned to as it should be, as a table and as JSON."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from link_learning_parts.observed import KNOWN_MOVES, Degraded, NewLink, degraded, new_links
from link_learning_parts.phases import Phases
from rich.console import Console
from rich.table import Table

from kvferry.integrations.log.reader import read_log


@dataclass(frozen=True, slots=True)
class Verdict:
    """`goals`: error (share), noticed and left (requests), back_s (seconds); all of them upper limits."""

    links: list[NewLink]
    degraded: Degraded
    phases: Phases
    goals: Mapping[str, float]

    @classmethod
    def of(cls, folder: Path, goals: Mapping[str, float]) -> "Verdict":
        """Raises OSError, ValueError or SourceError where FOLDER has no phases.json or no log."""
        phases = Phases.read(folder)
        records = list(read_log(str(folder / "decisions.jsonl")))
        return cls(new_links(records, phases), degraded(records, phases), phases, goals)

    @property
    def met(self) -> bool:
        """Whether every link is known, and the degraded one was in use, noticed, left and returned to."""
        one, goals = self.degraded, self.goals
        known = all(link.error_after < goals["error"] for link in self.links)
        names = ("noticed", "left", "back_s")
        return known and one.share > 0.0 and all(getattr(one, name) <= goals[name] for name in names)

    @property
    def row(self) -> dict[str, Any]:
        """As JSON: null for what never came."""
        return {
            "links": [_finite(link) for link in self.links],
            "degraded": _finite(self.degraded),
            "answers": self.phases.answers,
            "goals": dict(self.goals),
            "met": self.met,
        }

    def show(self, console: Console) -> None:
        table = Table(title="A new link: error of predicted transfer times", box=None, pad_edge=False)
        for name in ("link", "moves", f"first {KNOWN_MOVES}, median", "after, median", "goal"):
            table.add_column(name, justify="left" if name == "link" else "right")
        for link in self.links:
            errors = [_told(error, "{:.1%}") for error in (link.error_first, link.error_after)]
            goal = f"< {self.goals['error']:.0%}"
            table.add_row(f"{link.mbit_per_s:g} Mbit/s", str(link.moves), *errors, goal)
        console.print(table)
        one, goals = self.degraded, self.goals
        first = self.phases.mbit_per_s[0]
        table = Table(title=f"{first:g} Mbit/s at a tenth, and again whole", box=None, pad_edge=False)
        for name in ("", "measured", "goal"):
            table.add_column(name, justify="right" if name else "left")
        table.add_row("share of requests before", f"{one.share:.0%}", "")
        table.add_row("noticed after, requests over it", _told(one.noticed, "{:g}"), f"<= {goals['noticed']}")
        table.add_row("left after, requests routed", _told(one.left, "{:g}"), f"<= {goals['left']}")
        table.add_row("tries after that", str(one.tries), "")
        table.add_row("back after, s", _told(one.back_s, "{:.1f}"), f"<= {goals['back_s']:g}")
        console.print(table)
        answers = ", ".join(f"{count} x {what}" for what, count in self.phases.answers.items())
        console.print(f"Answers: {answers}. Goals: {'met' if self.met else 'NOT met'}")


def _told(value: float, form: str) -> str:
    return form.format(value) if math.isfinite(value) else "never"


def _finite(found: NewLink | Degraded) -> dict[str, float | None]:
    row = dataclasses.asdict(found)
    return {name: round(value, 4) if math.isfinite(value) else None for name, value in row.items()}
