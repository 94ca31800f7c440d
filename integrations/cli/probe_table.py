"""The paths of a probe as a table of 80 columns."""

import math
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvferry.integrations.cli.probe_findings import Finding
from kvferry.integrations.cli.probe_names import shortened
from kvferry.integrations.cli.units import human_seconds

FIGURES = ("GB/s", "alpha", "gamma", "error", "ratio")
LEAST_NAME = 8


def paths_table(found: Sequence[Finding], width: int = 80) -> Table:
    """`ratio`: lasting bandwidth over that of the class that the path claims.

    Figures are never cut; names have what `width` leaves them.
    """
    names = {name for one in found for name in (one.measured.src, one.measured.dst)}
    options = Console(width=10 * width).options
    bare = _table(found, dict.fromkeys(names, ""), len("from")).__rich_measure__(Console(), options).maximum
    room = max(LEAST_NAME, (width - bare + len("from") + len("to")) // 2)
    fits = all(len(name) <= room for name in names)
    return _table(found, {name: name for name in names} if fits else shortened(sorted(names), room), room)


def _table(found: Sequence[Finding], names: Mapping[str, str], room: int) -> Table:
    rows = [_figures(one) for one in found]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("from", "to"):
        table.add_column(name, max_width=room, overflow="fold")
    over = max((len(one.measured.transport) for one in found), default=0)
    table.add_column("over", no_wrap=True, min_width=max(over, len("over")))
    for place, name in enumerate(FIGURES):
        widest = max([len(name), *(len(row[place]) for row in rows)])
        table.add_column(name, justify="right", no_wrap=True, min_width=widest)
    for one, row in zip(found, rows, strict=True):
        measured = one.measured
        met = one.judgement is not None and one.judgement.met
        style = "red" if one.fitted is None else "" if met else "yellow"
        path = (names[measured.src], names[measured.dst], measured.transport)
        table.add_row(*map(Text, path), *row, style=style)
    return table


def _figures(one: Finding) -> tuple[str, ...]:
    if one.fitted is None or one.judgement is None:
        return tuple("-" * len(FIGURES))
    curve, ratio = one.fitted.curve, one.judgement.ratio
    return (
        _gb_s(curve.beta_bytes_per_s),
        human_seconds(curve.alpha_s),
        human_seconds(curve.last_gamma_s),
        f"{one.fitted.median_error:.0%}",
        f"{ratio:.2g}" if math.isfinite(ratio) else "-",
    )


def _gb_s(bytes_per_s: float) -> str:
    """`-` where bytes cost nothing: that is no bandwidth."""
    value = bytes_per_s / 1e9
    if not math.isfinite(value):
        return "-"
    return (
        f"{value:.{max(0, 2 - math.floor(math.log10(max(value, 1e-3))))}f}" if value < 100 else f"{value:.0f}"
    )
