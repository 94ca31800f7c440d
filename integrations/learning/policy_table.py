"""What another policy would have got, as a table of 80 columns and a few sentences."""

import textwrap
from collections.abc import Callable, Iterator

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvferry.integrations.cli.units import human_seconds
from kvferry.integrations.learning.offpolicy import PolicyResult
from kvferry.integrations.learning.tables import percent
from kvferry.models.offpolicy.interval import Interval
from kvferry.models.offpolicy.verdict import ASSUMPTIONS

ESTIMATORS = {"ips": "IPS", "snips": "SNIPS", "dr": "doubly robust"}
_MEASURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "slo_attainment": ("in SLO", percent),
    "ttft_s": ("TTFT", human_seconds),
    "itl_s": ("ITL", human_seconds),
}


def policy_table(result: PolicyResult) -> Table:
    """A row per measure: the log's own, and what each estimator says, with 95% intervals."""
    verdict = result.verdict
    table = Table(
        title=f"{result.name} ({result.version}), estimated with 95% intervals",
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for header in ("mean", "as logged", *ESTIMATORS.values()):
        table.add_column(header, justify="left" if header == "mean" else "right", no_wrap=True)
    for measure, (name, shown) in _MEASURES.items():
        if measure in verdict.logged:
            found = verdict.estimates.get(measure, {})
            cells = [_cell(found.get(each), shown) for each in ESTIMATORS]
            table.add_row(name, shown(verdict.logged[measure]), *cells)
    return table


def policy_lines(result: PolicyResult) -> Iterator[str]:
    """What the table rests on, or why there is none, in lines of at most 80 columns."""
    verdict = result.verdict
    yield from _wrapped(
        f"{verdict.decisions:,} logged decisions say as much of {result.name} as"
        f" {verdict.effective_sample_size:,.0f} of its own would"
    )
    if result.left_out:
        yield from _wrapped("left out: " + ", ".join(f"{n:,} {why}" for why, n in result.left_out.items()))
    if verdict.refused:
        yield from _wrapped(f"NO ESTIMATE of {result.name}: {verdict.refused}")
        return
    for measure, why in verdict.unmeasured.items():
        yield from _wrapped(f"no estimate of {_MEASURES[measure][0]}: {why}")
    if result.trained_on:
        yield from _wrapped(
            f"NOT held out: {result.trained_on:,} of these decisions are among what {result.version} was made"
            " from; judge it by later ones"
        )
    yield f"it would run {verdict.split_share:.0%} of the requests split"
    for assumption in ASSUMPTIONS:
        yield from _wrapped(f"taken for granted: {assumption}")


def _cell(found: Interval | None, shown: Callable[[float], str]) -> str:
    if found is None or found.value != found.value:  # NaN
        return "-"
    return f"{shown(found.value)}\n{shown(found.low)} - {shown(found.high)}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 80, subsequent_indent="  ")
