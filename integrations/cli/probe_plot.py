"""The matrix plot of a probe: hosts by hosts, one panel for each transport."""

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.cli.probe_findings import Finding
from kvferry.integrations.cli.probe_names import shortened
from kvferry.integrations.cli.units import human_seconds
from kvferry.models.paths.words import gb_s, percent

BAD = "#c0392b"
TITLE = "Measured paths: GB/s that last, and the start of a move"
SHARES = "Third line of a cell: its GB/s as a share of what is typical of the class it claims."
FRAMES = "Red frame: not what it claims (the last line says what falls short), or no figures."
# Characters of a host's name, and of a line in a cell.
NAME, ACROSS = 18, 16
# Inches: a cell, what is around panels, and a character of an axis's names.
CELL, LEAST_SIDE, LEAST_WIDTH = 1.3, 2.6, 6.4
HEAD, FOOT, GAP, BAR, EDGE = 0.85, 0.7, 0.45, 0.8, 0.2
CHARACTER, SLANT = 0.085, 0.5


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
    hosts = shortened((name for one in found for name in (one.measured.src, one.measured.dst)), NAME)
    transports = list(dict.fromkeys(one.measured.transport for one in found))
    rates = [one.fitted.curve.beta_bytes_per_s / 1e9 for one in found if one.fitted is not None] or [1.0]
    colours = colormaps["viridis"].with_extremes(bad="#eeeeee")
    norm = LogNorm(min(rates) / 2.0, max(rates) * 2.0)
    side = max(LEAST_SIDE, CELL * len(hosts))
    longest = max(map(len, hosts.values()), default=0) * CHARACTER
    left, below = EDGE + 0.35 + longest, FOOT + 0.3 + SLANT * longest
    wide = left + len(transports) * (side + GAP) + BAR
    width, height = max(wide, LEAST_WIDTH), below + side + HEAD
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)

    def text(x: float, y: float, words: str, **how: Any) -> None:
        figure.text(x / width, y / height, words, ha="left", va="center", **how)

    def axes_at(x: float, y: float, across: float, up: float) -> Any:
        return figure.add_axes((x / width, y / height, across / width, up / height))

    text(EDGE, height - 0.28, TITLE, fontsize=13)
    for number, transport in enumerate(transports):
        axes = axes_at(left + number * (side + GAP), below, side, side)
        _panel(
            axes, [one for one in found if one.measured.transport == transport], list(hosts), colours, norm
        )
        axes.set_title(transport, fontsize=11, loc="left")
        shown = {"fontsize": 9, "parse_math": False}  # a name may have a $
        axes.set_xticks(range(len(hosts)), hosts.values(), rotation=30, ha="right", **shown)
        axes.set_yticks(range(len(hosts)), [] if number else hosts.values(), **shown)
    text(EDGE, below + side + 0.15, "from", fontsize=10)
    text(EDGE, below - 0.2, "to", fontsize=10)
    bar = axes_at(left + len(transports) * (side + GAP) - 0.2, below, 0.16, side)
    figure.colorbar(ScalarMappable(norm, colours), cax=bar, label="GB/s", format="%g", ticks=_ticks(norm))
    bar.minorticks_off()
    if any(one.judgement is not None and one.judgement.telling for one in found):
        text(EDGE, 0.47, SHARES, fontsize=9)
    if any(one.judgement is None or not one.judgement.met for one in found):
        text(EDGE, 0.22, FRAMES, fontsize=9, color=BAD)
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:  # no such folder, no such format
        raise CommandError(f"cannot write {file}: {error}") from None


def cell(one: Finding) -> str:
    """What a cell says: bandwidth, start, the share of its class where it is telling, what falls short."""
    if one.fitted is None or one.judgement is None:
        return "not\nmeasured"
    curve, judgement = one.fitted.curve, one.judgement
    lines = [gb_s(curve.beta_bytes_per_s), human_seconds(curve.alpha_s)]
    if judgement.telling:
        lines.append(f"{percent(judgement.ratio)} of class")
    if judgement.short:
        lines += wrap(f"short: {', '.join(judgement.short)}", ACROSS)
    return "\n".join(lines)


def _ticks(norm: Any) -> list[float]:
    """1, 2 and 5 of each decade."""
    decades = range(math.floor(math.log10(norm.vmin)), math.ceil(math.log10(norm.vmax)) + 1)
    steps = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    return [step for step in steps if norm.vmin <= step <= norm.vmax]


def _panel(axes: Any, found: Sequence[Finding], hosts: Sequence[str], colours: Any, norm: Any) -> None:
    from matplotlib.patches import Rectangle

    rates = np.full((len(hosts), len(hosts)), np.nan)
    for one in found:
        row, column, colour = hosts.index(one.measured.src), hosts.index(one.measured.dst), BAD
        if one.fitted is not None:
            rates[row, column] = one.fitted.curve.beta_bytes_per_s / 1e9
            colour = "white" if norm(rates[row, column]) < 0.6 else "black"
        axes.text(column, row, cell(one), ha="center", va="center", fontsize=8.5, color=colour)
        if one.judgement is None or not one.judgement.met:
            frame = Rectangle((column - 0.47, row - 0.47), 0.94, 0.94, fill=False, ec=BAD, lw=2.2)
            axes.add_patch(frame)
    axes.imshow(np.ma.masked_invalid(rates), cmap=colours, norm=norm)
    for between in np.arange(len(hosts) - 1) + 0.5:
        axes.axhline(between, color="white", lw=2)
        axes.axvline(between, color="white", lw=2)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
