"""The picture of an evaluation: whether quantiles keep what they promise, and predicted against actual."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.learning.evaluation import Evaluation
from kvferry.integrations.learning.tables import measured, percent
from kvferry.models.training.report import Score
from kvferry.policy.correction import QUANTILES, TARGETS
from kvferry.policy.features import EPSILON_S

FORMATS = (".png", ".svg", ".pdf")
COLOURS = ("#2563a8", "#c0392b", "#2f7d4f", "#b5730f", "#7a4fb0", "#0f9aa0", "#7a4a2b")
MOST_DOTS = 3000


def check_plot(file: Path) -> None:
    """UsageError for a suffix that is none of FORMATS; CommandError when nothing can draw."""
    if file.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {file}: the name must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if not file.absolute().parent.is_dir():
        raise CommandError(f"cannot write {file}: {file.absolute().parent} is no folder")
    if find_spec("matplotlib") is None:
        raise CommandError("a plot needs matplotlib: pip install 'kvferry[plot]'")


def draw(found: Evaluation, file: Path) -> None:
    """Write `file`, one of FORMATS. Raises CommandError when it cannot be written."""
    check_plot(file)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = measured(found)
    colours = dict(zip(TARGETS, COLOURS, strict=True))
    columns = max(2, -(-len(names) // 2))
    figure = Figure(figsize=(4.6 + 3.1 * columns, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    title = f"{found.version} on {len(found.held_out.later):,} requests"
    figure.suptitle(f"{title}\n{found.held_out.why}", fontsize=11.5, x=0.01, ha="left")
    grid = figure.add_gridspec(2, columns + 1, width_ratios=(1.5, *(1,) * columns))
    kept = figure.add_subplot(grid[:, 0])
    reliability(kept, found.judged, names, colours)
    figure.legend(loc="outside lower left", ncols=len(names) + 1, frameon=False, fontsize=9)
    for place, name in enumerate(names):
        axes = figure.add_subplot(grid[place // columns, 1 + place % columns])
        against(axes, found, name, colours[name])
    try:
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror or error}") from None


def reliability(axes: Any, scores: Mapping[str, Score], names: list[str], colours: Mapping[str, str]) -> None:
    """Promised against observed share, a line per term; right is the diagonal."""
    axes.plot((0, 1), (0, 1), color="#999999", linewidth=1, linestyle="--", label="right")
    for name in names:
        each = scores[name]
        shares = (each.coverage_p50, each.coverage_p90, each.coverage_p99)
        told = [(q, share) for q, share in zip(QUANTILES, shares, strict=True) if share is not None]
        if told:
            axes.plot(*zip(*told, strict=True), marker="o", markersize=5, color=colours[name], label=name)
    axes.set(xlim=(0.4, 1.02), ylim=(0, 1.02), xlabel="predicted quantile", ylabel="share at or under it")
    axes.set_title("are quantiles kept?", fontsize=10, loc="left")
    axes.set_xticks(QUANTILES)
    axes.grid(alpha=0.25)


def against(axes: Any, found: Evaluation, name: str, colour: str) -> None:
    """Dots of predicted and actual seconds, logarithmic; right is the diagonal."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    place = TARGETS.index(name)
    actual, said = found.held_out.later.actual_s[:, place], found.predicted[:, 0, place]
    known = np.flatnonzero(np.isfinite(actual) & np.isfinite(said))
    known = known[:: max(1, -(-len(known) // MOST_DOTS))]
    x, y = (np.maximum(values[known], EPSILON_S) for values in (said, actual))
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max())) * 1.1
    axes.plot((low, high), (low, high), color="#999999", linewidth=1, linestyle="--")
    axes.scatter(x, y, s=5, alpha=0.35, color=colour, linewidths=0, rasterized=True)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set_title(f"{name}: median error {percent(found.judged[name].mdape)}", fontsize=10, loc="left")
    axes.set_xlabel("predicted p50, s", fontsize=9)
    axes.set_ylabel("actual, s", fontsize=9)
    axes.tick_params(labelsize=8)
    for axis in (axes.xaxis, axes.yaxis):  # by default a panel of less than a decade labels every minor tick
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=6))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda seconds, place: f"{seconds:g}"))
