"""`kvferry models health` as tables of 80 columns."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvferry.models.health.cluster import Found
from kvferry.models.health.finding import State
from kvferry.models.health.snapshot import Snapshot

_STYLES = {State.OK: "green", State.WARN: "yellow", State.BAD: "bold red"}
NAMED_ROUTERS = 3
IN_TERMS = ("coverage", "error")  # the table of terms shows those


def heading(snapshots: Sequence[Snapshot], whole: Snapshot, state: State) -> Text:
    """One line: the state, who tells, and what decides."""
    names = ", ".join(one.router for one in snapshots[:NAMED_ROUTERS])
    more = f" and {len(snapshots) - NAMED_ROUTERS} more" if len(snapshots) > NAMED_ROUTERS else ""
    text = Text("learning is ")
    text.append(state.value.upper(), _STYLES[state])
    version = whole.version or "structured"
    text.append(f" ({names}{more}; live: {version}; {whole.ended} requests)")
    return text


def terms_table(whole: Snapshot) -> Table:
    """Samples since the start; the rest is of late: the share under the predicted p90, and what the median
    is off by, as a factor, with its change."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("term", "mode"):
        table.add_column(name)
    for name in ("samples", "of late", "under p90", "off by", "drift"):
        table.add_column(name, justify="right")
    for name, term in whole.terms.items():
        coverage = term.coverage
        table.add_row(
            *name.split("/", 1),
            str(term.samples),
            str(term.window),
            "" if coverage is None else f"{coverage:.0%}",
            f"x{_factor(term.off)}",
            f"x{_factor(term.drift)}",
        )
    return table


def findings_table(findings: Sequence[Found], routers: int) -> list[RenderableType]:
    """What is wrong and what to do, and then what is fine."""
    table = Table(box=None, show_header=False, padding=(0, 1, 1, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in findings:
        finding = one.finding
        if finding.state is State.OK:
            continue
        where = ", ".join(one.routers[:NAMED_ROUTERS]) or "all together"
        of = f"{where}: " if routers > 1 else ""
        text = Text(f"{of}{finding.says}.")
        if finding.do:
            text.append(f"\n-> {finding.do}", "dim")
        table.add_row(Text(finding.state.value.upper(), _STYLES[finding.state]), text)
    fine = [one.finding for one in findings if one.finding.state is State.OK]
    says = [Text(f"ok   {finding.says}") for finding in fine if not finding.check.startswith(IN_TERMS)]
    return [*([table] if table.row_count else []), *says]


def _factor(logarithm: float) -> str:
    return f"{math.exp(max(-20.0, min(20.0, logarithm))):.2f}"
