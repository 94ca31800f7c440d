"""kvferry's moves beside the bare libraries' own, and how well they are predicted.

    python benchmarks/transports.py [--only "nixl cma"] [--pairs 30] [--staged 5] [--repeats 11] [--json]

Two processes on this machine for each of Mooncake, NIXL over CMA and NIXL over TCP, over the same memory.

Executor: 64 MiB of scattered 64 KiB blocks by `submit` and `wait`. Handoff: the same of KV pools by `Source`
and `Destination`, from the sending to the word that all is readable, control channel included. Staged: 64 MiB
in blocks of 1 KiB (pages of one token), gathered, written in bulk, scattered and acknowledged. The raw call
beside each: the same pages as one batch that was built before the clock started; for NIXL prepared lists and
tight loops on both sides, for Mooncake batch_transfer_sync_write, at most 1,024 descriptors at once, more of
which break it. The two are alternated move by move; `least` compares their fastest, `median` their medians.
Fit: the probe's moves (4 KiB to 256 MiB, 1 to 1,024 blocks) fitted by `models.paths`, which then predicts
moves of sizes and counts between those: |predicted - seen| / seen of the medians of repeats.

First moves are checked byte for byte. Other work on the machine is seen as noise: what was asked is judged by
the fastest. Takes 2 minutes on two cores. Exit code 1 where something asked was not met.
"""

import argparse
import json
import sys

from rich.console import Console
from rich.table import Table
from transports_parts.alternate import Compared
from transports_parts.pair import WAYS
from transports_parts.way import ERROR, OVERHEAD, Way, measured

from kvferry.integrations.learning.progress import progress
from kvferry.integrations.transports.errors import Missing, TransportError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(WAYS), help="one transport; may be repeated")
    parser.add_argument("--pairs", type=int, default=30, help="moves of each side that are compared")
    parser.add_argument("--staged", type=int, default=5, help="the same of 1 KiB blocks")
    parser.add_argument("--repeats", type=int, default=11, help="moves of each size and count to fit")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args()
    if min(given.pairs, given.staged, given.repeats) < 1:
        parser.error("--pairs, --staged and --repeats must be 1 or more")
    ways: list[Way] = []
    skipped: dict[str, str] = {}
    for name in given.only or WAYS:
        try:
            with progress(name) as report:
                ways.append(measured(name, given.pairs, given.staged, given.repeats, report))
        except Missing as error:
            skipped[name] = str(error)
            print(f"transports: {name} is skipped: {error}", file=sys.stderr)
        except (TransportError, RuntimeError, OSError) as error:
            sys.exit(f"transports: {name}: {error}")
        except KeyboardInterrupt:
            sys.exit("transports: stopped")
    met = all(way.met for way in ways)
    if given.json:
        print(json.dumps({"met": met, "ways": {way.name: way.row for way in ways}, "skipped": skipped}))
    elif ways:
        show(ways, met)
    sys.exit(0 if met else 1)


def show(ways: list[Way], met: bool) -> None:
    console = Console(width=80, highlight=False)
    table = table_of(
        "64 MiB in 64 KiB blocks, ours over the raw call", "ours, ms", "raw, ms", "least", "median", "asked"
    )
    for way in ways:
        table.add_row(way.name, "executor", *times(way.executor), f"<= {OVERHEAD:.2f}")
        table.add_row("", "handoff", *times(way.handoff), "")
    console.print(table)
    table = table_of(
        "\n64 MiB in 1 KiB blocks, times faster", "ours, ms", "raw, ms", "least", "median", "asked"
    )
    for way in ways:
        asked = "" if way.times_faster is None else f">= {way.times_faster:.0f}"
        ours, theirs, *_ = times(way.staged)
        faster = (f"{1.0 / ratio:.1f}" for ratio in (way.staged.least, way.staged.median))
        table.add_row(way.name, "staged", ours, theirs, *faster, asked)
    console.print(table)
    table = table_of("\nFit: error on other moves", "median", "p90", "asked", "alpha us", "GB/s", "gamma us")
    for way in ways:
        curve = way.fit.fitted.curve
        errors = f"{way.fit.median:.1%}", f"{way.fit.p90:.1%}", f"<= {ERROR:.0%}"
        figures = curve.alpha_s * 1e6, curve.beta_bytes_per_s / 1e9, curve.last_gamma_s * 1e6
        what = "two regimes" if curve.two_regimes else "one regime"
        table.add_row(way.name, what, *errors, *(f"{figure:.1f}" for figure in figures))
    console.print(table)
    console.print(f"\nWhat was asked: {'met' if met else 'NOT met'}")


def table_of(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("transport", ""):
        table.add_column(name)
    for name in names:
        table.add_column(name, justify="right")
    return table


def times(compared: Compared) -> tuple[str, str, str, str]:
    fastest = (min(took_s) * 1e3 for took_s in (compared.ours_s, compared.theirs_s))
    ours, theirs = (f"{each:.1f}" for each in fastest)
    return ours, theirs, f"{compared.least:.2f}", f"{compared.median:.2f}"


if __name__ == "__main__":
    main()
