"""The picture of a comparison: who meets the objectives at which rate, and where requests went."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvferry.integrations.cli.errors import CommandError
from kvferry.models.simulator.goodput import ATTAINMENT
from kvferry.models.simulator.metrics import KINDS

COLOURS = ("#2563a8", "#c0392b", "#2f7d4f", "#b07a1e", "#7a4fb0", "#5f6b76", "#0f8b8d", "#d1495b")
KIND_COLOURS = {"split": "#2563a8", "colocated": "#8fbf9f", "local_prefill": "#e0b04c", "unplaced": "#c0392b"}
KIND_LABELS = {
    "split": "split",
    "colocated": "on colocated workers",
    "local_prefill": "on decode workers",
    "unplaced": "nowhere",
}


def draw(
    curves: Mapping[str, Sequence[Sequence[Sequence[float | None]]]],
    attained: Mapping[str, float | None],
    timelines: Mapping[str, Mapping[str, Any]],
    events: Sequence[tuple[float, str]],
    title: str,
    file: Path,
) -> None:
    """Write `file` (its suffix gives the format). `curves`: per policy and seed the points of a scan, or
    nothing: then `attained` at the one rate that was run is shown. CommandError when it cannot be written."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise CommandError("a plot needs matplotlib: pip install 'kvferry[plot]'") from None
    rows = max(1, len(timelines))
    figure = Figure(figsize=(13.5, max(5.2, 1.4 + 1.25 * rows)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(rows, 2, width_ratios=(1, 1.15))
    figure.suptitle(title, fontsize=13, x=0.01, ha="left")
    left = figure.add_subplot(grid[:, 0])
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(attained)}
    if curves:
        _curves(left, curves, colours)
    else:
        _bars(left, attained, colours)
    panels: list[Any] = []
    for row, (name, timeline) in enumerate(timelines.items()):
        panel = figure.add_subplot(grid[row, 1], sharex=panels[0] if panels else None)
        _shares(panel, name, timeline, events, first=row == 0)
        panel.tick_params(axis="x", labelbottom=row == rows - 1)
        panels.append(panel)
    if panels:
        panels[-1].set_xlabel("time of arrival, s")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower right", ncols=len(labels), frameon=False, fontsize=9
        )
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:  # no such folder, no such format
        raise CommandError(f"cannot write {file}: {error}") from None


def _curves(
    axes: Any, curves: Mapping[str, Sequence[Sequence[Sequence[float | None]]]], colours: Mapping[str, str]
) -> None:
    lowest, highest_rps = 1.0, 0.0
    for place, (name, seeds) in enumerate(curves.items()):
        under = ATTAINMENT - 0.004 * (1 + place % 8)
        for number, points in enumerate(seeds):
            colour, label = colours[name], name if number == 0 else None
            whole = [(rate, met) for rate, met, _ in points if rate is not None and met is not None]
            given_up = [rate for rate, met, _ in points if rate is not None and met is None]
            lowest = min([lowest, under, *(met for _, met in whole)])
            highest_rps = max([highest_rps, *(rate for rate, _ in whole)])
            rates, shares = [rate for rate, _ in whole], [met for _, met in whole]
            axes.plot(rates, shares, "-o", ms=3, lw=1.5, color=colour, label=label)
            axes.plot(given_up, [under] * len(given_up), "v", ms=4.5, color=colour)
    if highest_rps > 0:
        axes.set_xlim(highest_rps / 16, highest_rps * 2)
    axes.axhline(ATTAINMENT, color="#888", lw=1, ls="--")
    axes.set(xscale="log", xlabel="requests/s", ylim=(lowest - 0.03, 1.005))
    axes.set_title("Met both objectives (triangle: under 90%, given up)", fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    _finish(axes, percent="y")
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _bars(axes: Any, attained: Mapping[str, float | None], colours: Mapping[str, str]) -> None:
    names = list(attained)[::-1]
    values = [attained[name] or 0.0 for name in names]
    axes.barh(names, values, color=[colours[name] for name in names], height=0.6)
    for row, value in enumerate(values):
        axes.text(
            min(value, 0.98) - 0.01, row, f"{value:.1%}", va="center", ha="right", color="white", fontsize=9
        )
    axes.axvline(ATTAINMENT, color="#888", lw=1, ls="--")
    axes.set(xlim=(0, 1))
    axes.set_title("Requests that met both objectives at this rate", fontsize=11, loc="left")
    _finish(axes, percent="x")


def _shares(
    axes: Any,
    name: str,
    timeline: Mapping[str, Any],
    events: Sequence[tuple[float, str]],
    *,
    first: bool,
) -> None:
    edges = timeline["edges_s"]
    totals = [max(1, sum(row)) for row in zip(*(timeline[kind] for kind in KINDS), strict=True)]
    shares = {kind: [n / all_ for n, all_ in zip(timeline[kind], totals, strict=True)] for kind in KINDS}
    axes.stackplot(
        edges,
        *([*shares[kind], shares[kind][-1]] for kind in KINDS),
        colors=[KIND_COLOURS[kind] for kind in KINDS],
        labels=[KIND_LABELS[kind] for kind in KINDS],
        step="post",
        lw=0,
    )
    for place, (time_s, label) in enumerate(events):
        axes.axvline(time_s, color="black", lw=1.1, ls=":")
        if first:
            axes.annotate(
                label, (time_s, 1), xytext=(2, 3 + 9 * (place % 2)), textcoords="offset points", fontsize=7.5
            )
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1))
    axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8.5)
    axes.set_yticks([])
    if first:
        axes.set_title(
            "Where requests went, by time of arrival", fontsize=11, loc="left", pad=24 if events else 6
        )


def _finish(axes: Any, percent: str) -> None:
    from matplotlib.ticker import PercentFormatter

    getattr(axes, f"{percent}axis").set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(color="#e5e5e5", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
