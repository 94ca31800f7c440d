"""The matrix plot of a probe: hosts by hosts, one panel for each transport."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.cli.probe_findings import Finding
from kvferry.integrations.cli.units import human_seconds
from kvferry.models.paths.words import SAME, gb_s

BAD = "#c0392b"
CELL = 1.25


def draw(found: Sequence[Finding], file: Path) -> None:
    """Write the plot to `file` (its suffix gives the format). CommandError when it cannot."""
    try:
        from matplotlib import colormaps
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
    except ImportError:
        raise CommandError("a plot needs matplotlib: pip install 'kvferry[plot]'") from None
    hosts = list(dict.fromkeys(name for one in found for name in (one.measured.src, one.measured.dst)))
    transports = list(dict.fromkeys(one.measured.transport for one in found))
    rates = [one.fitted.curve.beta_bytes_per_s / 1e9 for one in found if one.fitted is not None] or [1.0]
    colours = colormaps["viridis"].with_extremes(bad="#eeeeee")
    norm = LogNorm(min(rates) / 1.5, max(rates) * 1.5)
    side = max(2.8, CELL * len(hosts))
    figure = Figure(figsize=(len(transports) * (side + 0.9) + 1.8, side + 1.7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("Measured paths: GB/s that last, and the start of a move", fontsize=13, x=0.01, ha="left")
    panels = figure.subplots(1, len(transports), squeeze=False)[0]
    for axes, transport in zip(panels, transports, strict=True):
        _panel(axes, [one for one in found if one.measured.transport == transport], hosts, colours, norm)
        axes.set_title(transport, fontsize=11, loc="left")
        axes.set_xlabel("to")
    panels[0].set_ylabel("from")
    figure.colorbar(ScalarMappable(norm, colours), ax=list(panels), label="GB/s", shrink=0.85)
    missed = sum(1 for one in found if one.judgement is None or not one.judgement.met)
    if missed:
        figure.supxlabel(
            "Red frame: the path is not what it claims (below: its share of that class), or has no figures",
            fontsize=9, color=BAD, x=0.01, ha="left",
        )  # fmt: skip
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:  # no such folder, no such format
        raise CommandError(f"cannot write {file}: {error}") from None


def _panel(axes: Any, found: Sequence[Finding], hosts: Sequence[str], colours: Any, norm: Any) -> None:
    from matplotlib.patches import Rectangle

    rates = np.full((len(hosts), len(hosts)), np.nan)
    for one in found:
        row, column = hosts.index(one.measured.src), hosts.index(one.measured.dst)
        missed = one.judgement is None or not one.judgement.met
        if one.fitted is None or one.judgement is None:
            text, colour = "none", BAD
        else:
            curve = one.fitted.curve
            rates[row, column] = curve.beta_bytes_per_s / 1e9
            text = f"{gb_s(curve.beta_bytes_per_s)}\n{human_seconds(curve.alpha_s)}"
            text += (
                f"\n{one.judgement.ratio:.2g}x" if abs(one.judgement.ratio - 1.0) > SAME and missed else ""
            )
            colour = "white" if norm(rates[row, column]) < 0.6 else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=9, color=colour)
        if missed:
            frame = Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, ec=BAD, lw=2.2)
            axes.add_patch(frame)
    axes.imshow(np.ma.masked_invalid(rates), cmap=colours, norm=norm)
    axes.set_xticks(range(len(hosts)), hosts, fontsize=9, rotation=30, ha="right", parse_math=False)
    axes.set_yticks(range(len(hosts)), hosts, fontsize=9, parse_math=False)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
