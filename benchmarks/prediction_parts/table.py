"""A judgement in at most 80 columns."""

from prediction_parts.judgement import Judgement
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kvferry.integrations.learning.tables import coverage_table, errors_table, percent


def show(found: Judgement, console: Console) -> None:
    """Errors beside those of baselines, quantiles, transfers by path, and every goal."""
    manifest, evaluation = found.artifact.manifest, found.evaluation
    console.print(errors_table(evaluation))
    console.print(coverage_table(evaluation.judged, f"of {evaluation.version} ({manifest.kind})"))
    console.print(coverage_table_of_paths(found))
    for note in manifest.notes:
        console.print(note, markup=False)
    for goal in found.goals:
        low = f"{goal.low:.0%} to " if goal.low > 0.0 and goal.high < 1.0 else ""
        wanted = f"at least {goal.low:.0%}" if goal.high == 1.0 else f"{low or 'at most '}{goal.high:.0%}"
        word = "reached" if goal.reached else "MISSED"
        console.print(f"{word:8} {goal.name} {percent(goal.value)} (wanted: {wanted})")


def coverage_table_of_paths(found: Judgement) -> Table:
    """Median error and coverage of transfers over each transport and path."""
    table = Table(title="transfers", title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for header in ("", "requests", "median error", "under p90"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    for name, each in found.paths.items():
        table.add_row(name, f"{each.n:,}", percent(each.mdape), percent(each.coverage_p90))
    return table
