"""The paths of a probe as a table of 80 columns."""

import math
from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from kvferry.integrations.cli.probe_findings import Finding
from kvferry.integrations.cli.units import human_seconds

NAME = 15


def paths_table(found: Sequence[Finding]) -> Table:
    """`ratio`: lasting bandwidth over that of the class that the path claims."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("from", "to", "over"):
        table.add_column(name, no_wrap=True)
    for name in ("GB/s", "alpha", "gamma", "error", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found:
        path = [escape(_short(name)) for name in (one.measured.src, one.measured.dst)]
        path.append(one.measured.transport)
        if one.fitted is None or one.judgement is None:
            table.add_row(*path, *"-----", style="red")
            continue
        curve = one.fitted.curve
        table.add_row(
            *path,
            _gb_s(curve.beta_bytes_per_s),
            human_seconds(curve.alpha_s),
            human_seconds(curve.last_gamma_s),
            f"{one.fitted.median_error:.0%}",
            f"{one.judgement.ratio:.2g}",
            style="" if one.judgement.met else "yellow",
        )
    return table


def _short(name: str) -> str:
    """At most NAME characters: names of one cluster differ at their ends."""
    return name if len(name) <= NAME else f"{name[:4]}\u2026{name[5 - NAME :]}"


def _gb_s(bytes_per_s: float) -> str:
    value = bytes_per_s / 1e9
    return (
        f"{value:.{max(0, 2 - math.floor(math.log10(max(value, 1e-3))))}f}" if value < 100 else f"{value:.0f}"
    )
