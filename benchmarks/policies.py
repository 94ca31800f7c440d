"""kvferry against every public rule, and against colocated workers, on real traces.

    python benchmarks/policies.py [--grid core|quick|FILE] [--traces DIR] [--jobs 2] [--out DIR] [--seeds 3]

Whatever can be tuned is tuned on the first half of each trace and reported on the second, by goodput: the
highest rate at which 90% of requests meet TTFT and mean ITL (class-fair: and 80% in each quartile of prompt
length). Rates are scanned upwards. Prints Markdown; DIR/policies.json and DIR/policies.md hold the same. A
command that was stopped goes on where it was. docs/policies_benchmark.md says what is compared, and how.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from policies_parts import outcome as outcomes
from policies_parts.bounds import bounds
from policies_parts.contest import Contest, contest_of, only, quick
from policies_parts.table import markdown
from policies_parts.tuning import choose, tuning_tasks
from policies_parts.work import do

from kvferry.integrations.cli.errors import CommandError
from kvferry.models.simulator.grid_file import parse_axes
from kvferry.models.toml_file import ConfigError, packaged, read_toml

TRACES = Path(__file__).parents[2] / "shared" / "data" / "traces"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--grid", default="core", help="core, quick (a part of core, coarser) or a TOML file")
    parser.add_argument("--traces", type=Path, default=TRACES, help="where the traces of the grid lie")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="where results are kept (policies-GRID)")
    parser.add_argument("--seeds", type=int, help="how many (as the grid says)")
    parser.add_argument("--only", action="append", default=[], help="a workload, path or pool; repeatable")
    parser.add_argument("--tag", default="", help="a new one makes kvferry's own runs anew and keeps others'")
    given = parser.parse_args()
    try:
        contest = read(given.grid, given.traces, given.tag, given.seeds, tuple(given.only))
        out = given.out or Path(f"policies-{contest.name}")
        print(run(contest, given.jobs, out))
    except (CommandError, ConfigError, OSError, RuntimeError) as error:
        sys.exit(f"policies: {error}")
    except KeyboardInterrupt:
        sys.exit("policies: stopped; the same command goes on where it was")


def read(grid: str, traces: Path, tag: str, seeds: int | None, words: tuple[str, ...]) -> Contest:
    """ConfigError when the grid is not one that can be scanned."""
    built_in = grid in ("core", "quick")
    file = packaged("grids/core.toml") if built_in else Path(grid)
    axes = parse_axes(read_toml(file), grid, traces if built_in else file.parent)
    if axes.scan is None:
        raise ConfigError(f"{grid}: a [goodput] table is missing")
    if seeds is not None:
        axes = replace(axes, seeds=tuple(range(seeds)))
    contest = contest_of(axes, grid if built_in else file.stem, tag)
    contest = only(quick(contest) if grid == "quick" else contest, words)
    if not contest.scenarios:
        raise ConfigError(f"{grid}: nothing is {' and '.join(words) or 'a pool that can split'}")
    return contest


def run(contest: Contest, jobs: int, out: Path) -> str:
    """The Markdown; OUT/policies.json and OUT/policies.md are written."""
    choice = choose(contest, do(tuning_tasks(contest), jobs, out, "tuning"))
    found = do(outcomes.report_tasks(contest, choice), jobs, out, "reporting")
    whole = outcomes.outcome(contest, choice, found)
    bounds(contest, whole["cells"])
    text = markdown(whole)
    (out / "policies.json").write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n")
    (out / "policies.md").write_text(text)
    return text


if __name__ == "__main__":
    main()
