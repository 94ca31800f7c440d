"""How soon the router knows a link: a new one from nothing, and one that is degraded tenfold and recovers.

    python benchmarks/link_learning.py [--links 40] [--seeds 8] [--explore 0.02] [--json]
    python benchmarks/link_learning.py --real [--keep DIR] [--json]
    python benchmarks/link_learning.py --from DIR [--json]

New links have true costs of a third to three times the catalogue's and up to 20 ms more a move, 10% of noise,
and 3% of moves that take five times as long. `error` is that of the next move, before it is learned from.
A degraded link: simulated, two prefill and three decode workers, one of which has its NIC at a tenth for two
minutes. Counts are requests over that link from when it was degraded.

--real: real SGLang workers on this machine's CPU, a decode worker and two prefill workers behind wires of
200 and 80 Mbit/s (network namespaces: root and iproute2; without, a line says so and the exit code is 0),
and a router with its defaults. One request at a time; after 90 s the faster wire falls to a tenth for 60 s.
"Left" counts requests on both wires until ten in a row took the other; "tries" are what went over it after
that while it was slow. Takes 6 minutes and 6 GiB; other work on the machine is seen as noise. --from judges
the logs that --keep kept.
"""

import argparse
import dataclasses
import json
import math
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from link_learning_parts import degraded, fresh, shaped
from link_learning_parts.verdict import Verdict
from prediction_parts.wire import NoWire
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvferry.integrations.learning.progress import progress
from kvferry.integrations.log.source import SourceError
from kvferry.integrations.sglang.local.worker import LocalWorkerError

AFTER = ((0, 1), (1, 3), (3, 10), (10, 30), (30, 60), (60, 100))
GOALS = {"error": 0.2, "noticed": 10, "left": 20, "back_s": 60.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--links", type=int, default=40, help="new links of each kind")
    parser.add_argument("--seeds", type=int, default=8, help="simulated degradations")
    parser.add_argument("--explore", type=float, default=0.02, help="share of requests to learn from")
    parser.add_argument("--real", action="store_true", help="real workers, in place of all that")
    parser.add_argument("--keep", type=Path, help="with --real: a folder for logs that stay")
    parser.add_argument("--from", dest="source", type=Path, help="logs of --real that are there already")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args()
    if min(given.links, given.seeds) < 1 or not 0.0 <= given.explore <= 1.0:
        parser.error("--links and --seeds must be 1 or more, --explore between 0 and 1")
    if given.keep and (given.source or not given.real):
        parser.error("--keep is for the logs that --real makes")
    if given.real or given.source:
        sys.exit(0 if real(given) else 1)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("links", total=len(fresh.KINDS) * given.links + given.seeds)
        new: dict[str, list[dict[str, Any]]] = {}
        for kind in fresh.KINDS:
            runs = []
            for seed in range(given.links):
                runs.append(list(fresh.errors(kind, seed)))
                progress.advance(task)
            new[kind] = learned(np.array(runs))
        found = []
        for seed in range(given.seeds):
            found.append(degraded.run(seed, explore=given.explore))
            progress.advance(task)
    ok = met(new, found)
    if given.json:
        rows = [{name: told(value) for name, value in dataclasses.asdict(one).items()} for one in found]
        print(json.dumps({"new": new, "degraded": rows, "goals": GOALS, "met": ok}))
    else:
        show(new, found, ok)
    sys.exit(0 if ok else 1)


def real(given: argparse.Namespace) -> bool:
    """Whether the goals were met on a real link, printed. True where there can be none, which a line says."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = given.source or given.keep or Path(temporary)
            if not given.source:
                folder.mkdir(parents=True, exist_ok=True)
                print("link_learning: starting workers", file=sys.stderr)
                with progress("sending") as report:
                    shaped.run(folder, 0, report)
            found = Verdict.of(folder, GOALS)
    except NoWire as error:
        print(f"link_learning: skipped, no shaped link here: {error}", file=sys.stderr)
        if given.json:
            print(json.dumps({"skipped": str(error)}))
        return True
    except (LocalWorkerError, SourceError, OSError, ValueError, RuntimeError) as error:
        sys.exit(f"link_learning: {error}")
    except KeyboardInterrupt:
        sys.exit("link_learning: stopped")
    if given.json:
        print(json.dumps(found.row, allow_nan=False))
    else:
        found.show(Console(width=80, highlight=False))
    return found.met


def learned(errors: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """By how many moves there were before; `errors`: [links, moves, 2], by what was learned and catalogue."""
    rows = []
    for first, end in AFTER:
        mine, catalogue = (errors[:, first:end, place].ravel() for place in (0, 1))
        rows.append(
            {
                "moves": first,
                "error_median": round(float(np.median(mine)), 4),
                "error_p90": round(float(np.quantile(mine, 0.9)), 4),
                "worst_link": round(float(np.median(errors[:, first:end, 0], axis=1).max()), 4),
                "catalogue_median": round(float(np.median(catalogue)), 4),
            }
        )
    return rows


def met(new: dict[str, list[dict[str, Any]]], found: list[degraded.Found]) -> bool:
    """Whether every link is known after 30 moves, and every degradation was seen, left and recovered from."""
    known = [
        row["worst_link"] < GOALS["error"] for rows in new.values() for row in rows if row["moves"] >= 30
    ]
    names = ("noticed", "left", "back_s")
    return all(known) and all(getattr(one, name) <= GOALS[name] for one in found for name in names)


def told(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


def show(new: dict[str, list[dict[str, Any]]], found: list[degraded.Found], ok: bool) -> None:
    console = Console(width=80)
    table = Table(title="A new link: error of the next move", box=None, pad_edge=False)
    for name in ("link", "after moves", "median", "p90", "worst link", "by catalogue"):
        table.add_column(name, justify="left" if name == "link" else "right")
    for kind, rows in new.items():
        for row in rows:
            shares = [row[name] for name in ("error_median", "error_p90", "worst_link", "catalogue_median")]
            table.add_row(kind, str(row["moves"]), *(f"{share:.1%}" for share in shares))
    console.print(table)
    table = Table(title="A link at a tenth: requests over it", box=None, pad_edge=False)
    for name in ("seed", "share before", "noticed after", "left after", "tries", "back after s"):
        table.add_column(name, justify="right")
    for one in found:
        counts = [f"{value:g}" for value in (one.noticed, one.left, one.tries)]
        table.add_row(str(one.seed), f"{one.share:.0%}", *counts, f"{one.back_s:.1f}")
    console.print(table)
    console.print(
        f"Goals: error under {GOALS['error']:.0%} after 30 moves; noticed within {GOALS['noticed']}, left "
        f"within {GOALS['left']} requests, back in {GOALS['back_s']:.0f} s: {'met' if ok else 'NOT met'}",
        highlight=False,
    )


if __name__ == "__main__":
    main()
