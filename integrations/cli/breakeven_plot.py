"""The picture of a break-even: what a split saves and pays by prompt length, and where they cross."""

from pathlib import Path
from typing import Any

from kvferry.integrations.cli.errors import CommandError
from kvferry.policy.breakeven import Assumptions, BreakEven

COLOURS = {
    "nvlink": "#2f7d4f",
    "rdma_gpudirect": "#2563a8",
    "rdma_host": "#7a4fb0",
    "pcie": "#b07a1e",
    "tcp": "#c0392b",
    "shared_memory": "#5f6b76",
}
LABELS = {
    "nvlink": "NVLink",
    "rdma_gpudirect": "RDMA, GPUDirect",
    "rdma_host": "RDMA through the host",
    "pcie": "PCIe",
    "tcp": "TCP",
    "shared_memory": "shared memory",
}


def draw(found: list[BreakEven], title: str, given: Assumptions, file: Path) -> None:
    """Write the plot to `file` (its suffix gives the format). CommandError when it cannot."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise CommandError("a plot needs matplotlib: pip install 'kvferry[plot]'") from None
    ordered = sorted(found, key=lambda one: (one.at is None, one.at or 0, one.path.name), reverse=True)
    figure = Figure(figsize=(13.5, max(5.2, 1.9 + 0.3 * len(found))), layout="constrained")
    FigureCanvasAgg(figure)
    curves, dots = figure.subplots(1, 2, width_ratios=(1.15, 1))
    figure.suptitle(
        f"From which prompt length on does a split pay?   {title}", fontsize=14, x=0.01, ha="left"
    )
    _curves(curves, ordered)
    _dots(dots, ordered)
    assumed = (
        f"{given.running_decodes} decodes on each colocated worker",
        f"{given.decode_batch} on the decode worker",
        f"{given.output_tokens} output tokens",
        f"chunks of {given.chunk_tokens:,}",
        f"pages of {given.page_size}",
        f"{given.in_flight} other moves",
        f"KV in {given.dtype}",
    )
    figure.supxlabel("Assumed: " + "; ".join(assumed), fontsize=9, color="#555", x=0.01, ha="left")
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:  # no such folder, no such format
        raise CommandError(f"cannot write {file}: {error}") from None


def _curves(axes: Any, found: list[BreakEven]) -> None:
    first = found[0]
    named: set[str] = set()
    for each in found:
        label = None if each.path.kind in named else f"paid, {LABELS[each.path.kind]}"
        named.add(each.path.kind)
        axes.plot(
            each.prompt_tokens, each.paid_s, color=COLOURS[each.path.kind], lw=1.3, alpha=0.75, label=label
        )
    axes.plot(first.prompt_tokens, first.saved_s, color="black", lw=2.4, label="saved")
    for each in found:
        if each.at is not None:
            row = int(abs(each.prompt_tokens - each.at).argmin())
            axes.plot(each.at, each.saved_s[row], "o", ms=4.5, color=COLOURS[each.path.kind], zorder=5)
    axes.set(xscale="log", yscale="log", xlabel="prompt tokens", ylabel="request-seconds", xlim=(32, None))
    shown = first.prompt_tokens >= 32
    axes.set_ylim(float(first.saved_s[shown].min()) / 1.5, float(first.saved_s.max()) * 1.5)
    axes.set_title("Saved (black) against paid: a split pays right of the crossing", fontsize=11, loc="left")
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: (labels[i] != "saved", labels[i]))
    axes.legend([handles[i] for i in order], [labels[i] for i in order], frameon=False, loc="upper left")
    _finish(axes, (1, 2, 5))
    axes.grid(axis="y", color="#e5e5e5", lw=0.8)


def _dots(axes: Any, found: list[BreakEven]) -> None:
    reached = [each.at for each in found if each.at is not None]
    low = min(reached, default=100) / 1.6
    high = max(reached, default=1000) * 2.2
    for row, each in enumerate(found):
        colour = COLOURS[each.path.kind]
        if each.at is None:
            axes.text(high, row, "never  ", va="center", ha="right", color=colour, fontsize=9.5)
            continue
        axes.plot([low, each.at], [row, row], color=colour, lw=1.6, alpha=0.45)
        axes.plot(each.at, row, "o", color=colour, ms=7)
        axes.text(each.at, row, f"   {each.at:,}", va="center", color=colour, fontsize=9.5)
    axes.set(xscale="log", xlabel="prompt tokens", xlim=(low, high), ylim=(-0.7, len(found) - 0.3))
    axes.set_yticks(range(len(found)), [each.path.name for each in found], fontsize=9)
    axes.set_title("Break-even per path class", fontsize=11, loc="left")
    _finish(axes, (1, 2, 3, 5) if high < 100 * low else (1,))


def _finish(axes: Any, subs: tuple[int, ...]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(base=10, subs=subs))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}")
    )
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", labelrotation=0, labelsize=9)
    axes.tick_params(axis="x", which="minor", length=0)
    axes.grid(axis="x", color="#e5e5e5", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
