"""The parts of the picture of a comparison."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvferry.models.simulator.goodput import ATTAINMENT
from kvferry.models.simulator.metrics import KINDS

Scans = Mapping[str, Sequence[Sequence[Sequence[float | None]]]]

# Greys: colours are for policies.
KIND_COLOURS = {"split": "#4a545e", "colocated": "#9fa8b1", "local_prefill": "#dde1e5", "unplaced": "#000000"}
KIND_LABELS = {
    "split": "split",
    "colocated": "on colocated workers",
    "local_prefill": "on decode workers",
    "unplaced": "nowhere",
}


def goodputs(curves: Scans) -> dict[str, float]:
    """Requests/s, by policy: the highest rate at which 90% met the objectives (0: none), mean of seeds."""
    return {name: sum(map(_highest_rps, seeds)) / max(1, len(seeds)) for name, seeds in curves.items()}


def _highest_rps(points: Sequence[Sequence[float | None]]) -> float:
    return max((rate for rate, met, *_ in points if rate and met and met >= ATTAINMENT), default=0.0)


def rates(axes: Any, curves: Scans, found: Mapping[str, float], colours: Mapping[str, str]) -> None:
    """Who met the objectives by request rate, the best policy first in the legend, which tells goodputs."""
    lowest, highest_rps, gave_up = 1.0, 0.0, False
    for place, (name, seeds) in enumerate(curves.items()):
        under = ATTAINMENT - 0.004 * (1 + place % 8)
        told = f"{found[name]:.3g}/s" if found[name] else "none"
        for number, points in enumerate(seeds):
            colour, label = colours[name], f"{name}: {told}" if number == 0 else None
            whole = [(rate, met) for rate, met, *_ in points if rate is not None and met is not None]
            given_up = [rate for rate, met, *_ in points if rate is not None and met is None]
            lowest = min([lowest, under, *(met for _, met in whole)])
            highest_rps = max([highest_rps, *(rate for rate, _ in whole)])
            gave_up = gave_up or bool(given_up)
            marks, share = [rate for rate, _ in whole], [met for _, met in whole]
            axes.plot(marks, share, "-o", ms=3, lw=1.5, color=colour, label=label)
            axes.plot(given_up, [under] * len(given_up), "v", ms=4.5, color=colour)
    floor = lowest - 0.03
    passed = sorted((rps, name) for name, rps in found.items() if rps)
    for place, (rps, name) in enumerate(passed):
        axes.vlines(rps, floor, ATTAINMENT, color=colours[name], lw=1, ls=":")
        axes.plot([rps], [ATTAINMENT], "*", ms=11, color=colours[name], mec="white", mew=0.6, zorder=4)
        axes.annotate(
            f"{rps:.3g}",
            (rps, 0.03 + 0.045 * (len(passed) - 1 - place)),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            color=colours[name],
            fontsize=8.5,
            zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )
    if highest_rps > 0:
        axes.set_xlim(min([highest_rps / 16, *(rps / 2 for rps, _ in passed)]), highest_rps * 2)
    axes.axhline(ATTAINMENT, color="#555", lw=1, ls="--", zorder=1, label=_line())
    axes.plot([], [], "*", ms=9, color="#555", label="goodput: the highest rate that reached it")
    if gave_up:
        axes.plot([], [], "v", ms=4.5, color="#555", label="run given up: certainly under it")
    axes.set(xscale="log", xlabel="requests/s", ylim=(floor, 1.005))
    axes.set_title("Requests that met both objectives, and goodput", fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(-0.02, -0.1), ncols=2)
    _finish(axes, percent="y")
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def bars(axes: Any, attained: Mapping[str, float | None], colours: Mapping[str, str]) -> None:
    """Who met the objectives at one rate, the first on top; figures stand right of the axes."""
    names = list(attained)[::-1]
    axes.barh(
        names, [attained[name] or 0.0 for name in names], color=[colours[name] for name in names], height=0.6
    )
    for row, name in enumerate(names):
        share = attained[name]
        told = "-" if share is None else f"{share:.1%}"
        axes.annotate(
            told, (1, row), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9, color="#222"
        )
    axes.axvline(ATTAINMENT, color="#555", lw=1, ls="--", label=_line())
    axes.set(xlim=(0, 1))
    axes.set_title("Requests that met both objectives", fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="lower right", bbox_to_anchor=(1.0, 0.995))
    _finish(axes, percent="x")


def shares(
    axes: Any,
    name: str,
    timeline: Mapping[str, Any],
    events: Sequence[tuple[float, str]],
    colour: str,
    *,
    first: bool,
) -> None:
    """Where a policy sent the requests of each bin of time; the first panel has the title."""
    from matplotlib.ticker import PercentFormatter

    edges = timeline["edges_s"]
    counts = [sum(row) for row in zip(*(timeline[kind] for kind in KINDS), strict=True)]
    parts = {
        kind: [n / max(1, all_) for n, all_ in zip(timeline[kind], counts, strict=True)] for kind in KINDS
    }
    axes.stackplot(
        edges,
        *([*parts[kind], parts[kind][-1]] for kind in KINDS),
        colors=[KIND_COLOURS[kind] for kind in KINDS],
        labels=[KIND_LABELS[kind] for kind in KINDS],
        step="post",
        lw=0,
    )
    for place, (time_s, label) in enumerate(events):
        axes.axvline(time_s, color="#c8102e", lw=1.2, ls=":")
        if first:
            axes.annotate(
                label, (time_s, 1), xytext=(2, 3 + 9 * (place % 2)), textcoords="offset points", fontsize=7.5
            )
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1))
    axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8.5, color=colour)
    axes.set_yticks([0, 0.5, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.tick_params(axis="y", labelsize=7)
    if first:
        rate_rps = sum(counts) / max(1e-9, edges[-1] - edges[0])
        axes.set_title(
            f"Where requests went, at a mean of {rate_rps:.3g} requests/s",
            fontsize=11,
            loc="left",
            pad=24 if events else 6,
        )


def _line() -> str:
    return f"{ATTAINMENT:.0%} of requests"


def _finish(axes: Any, percent: str) -> None:
    from matplotlib.ticker import PercentFormatter

    getattr(axes, f"{percent}axis").set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(color="#e5e5e5", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
