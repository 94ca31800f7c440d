"""The picture of a comparison: who meets the objectives at which rate, and where requests went."""

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.simulate.plot_axes import bars, goodputs, rates, shares
from kvferry.models.simulator.spec import ClusterSpec

FORMATS = (".png", ".svg", ".pdf")
COLOURS = ("#2563a8", "#c0392b", "#2f7d4f", "#b5730f", "#7a4fb0", "#0f9aa0", "#d9579b", "#7a4a2b")


def check_plot(file: Path) -> None:
    """UsageError for a suffix that is none of FORMATS; CommandError when nothing can draw."""
    if file.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {file}: the name must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if find_spec("matplotlib") is None:
        raise CommandError("a plot needs matplotlib: pip install 'kvferry[plot]'")


def setting_of(cluster: ClusterSpec, seed: int, seeds: int = 1) -> str:
    """What was simulated, in a line: workers, models and GPUs, what joins them, seeds."""
    workers: Counter[tuple[str, str, int, str]] = Counter()
    for engine in cluster.engines:
        workers[engine.model.rpartition("/")[2], engine.gpu, engine.tp, engine.role.value] += 1
    kinds: dict[tuple[str, str, int], list[str]] = {}
    for (model, gpu, tp, role), count in workers.items():
        kinds.setdefault((model, gpu, tp), []).append(f"{count} {role}")
    told = [f"{model}, {gpu} TP{tp}: {', '.join(roles)}" for (model, gpu, tp), roles in kinds.items()]
    path = f"{cluster.path_class} ({cluster.transport})"
    drawn = f"seed {seed}" if seeds == 1 else f"seeds {seed} to {seed + seeds - 1}"
    return "; ".join([*told, *([path] if len({e.role for e in cluster.engines}) > 1 else []), drawn])


def draw(
    curves: Mapping[str, Sequence[Sequence[Sequence[float | None]]]],
    attained: Mapping[str, float | None],
    timelines: Mapping[str, Mapping[str, Any]],
    events: Sequence[tuple[float, str]],
    title: str,
    file: Path,
    setting: str = "",
) -> None:
    """Write `file`, one of FORMATS. `curves`: per policy and seed the points of a scan, or nothing: then
    `attained` at the one rate that was run is shown. `timelines` are those of one seed. `setting`: a second
    line under the title. CommandError when it cannot be written."""
    check_plot(file)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = goodputs(curves)
    order = sorted(attained, key=lambda name: -(found.get(name, 0.0) + 1e-3 * (attained[name] or 0.0)))
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(attained)}
    rows = max(1, len(timelines))
    figure = Figure(figsize=(13.5, max(5.6, 1.9 + 1.25 * rows)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(rows, 2, width_ratios=(1, 1.15))
    figure.suptitle("\n".join(filter(None, (title, setting))), fontsize=11.5, x=0.01, ha="left")
    left = figure.add_subplot(grid[:, 0])
    if curves:
        rates(left, {name: curves[name] for name in order if name in curves}, found, colours)
    else:
        bars(left, {name: attained[name] for name in order}, colours)
    panels: list[Any] = []
    for row, name in enumerate(name for name in order if name in timelines):
        panel = figure.add_subplot(grid[row, 1], sharex=panels[0] if panels else None)
        shares(panel, name, timelines[name], events, colours[name], first=row == 0)
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
    except OSError as error:  # no such folder
        raise CommandError(f"cannot write {file}: {error}") from None
