"""How far the simulator is from measured runs.

    python benchmarks/simulator_fidelity.py DATA_FOLDER [--json]

DATA_FOLDER holds llmservingsim_rtx4090/ and dynamo_planner_profiles.csv. What is compared, and what was
fitted to what, stands in benchmarks/fidelity/: rtx4090 (a vLLM request log), planner (Dynamo's profiles),
serving and split (aiconfigurator's measured SGLang points; with the extra kvferry[silicon]).
"""

import argparse
import json
import sys
from pathlib import Path

from fidelity import planner, rtx4090, serving, split
from fidelity.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

WHY = {
    "SGLang colocated points": (
        "The sample does not say how requests came. TTFT: 0.15 to 0.3 s of HTTP, tokenizing and scheduling "
        "around a prefill are not modelled, and weigh most where prefills are short. Equal requests stay in "
        "step in the simulator, so that whole batches are prefilled at once; a real server with hundreds of "
        "streams lets them drift apart (Llama-3.1-8B). TPOT: kernels only, no host time, which is much of a "
        "small model's step."
    ),
    "SGLang split points": (
        "How many requests were in flight is guessed from the planned batch. With it the first point asks "
        "more of its prefill workers than the tables give, and queues. In the other three a token takes 112 "
        "to 560 ms, many times what the same GPUs take colocated: decode did not run freely there, and "
        "nothing in the sample says why."
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args()
    if not (given.data / "dynamo_planner_profiles.csv").is_file():
        sys.exit(f"no measured runs in {given.data}")
    parts = [
        ("RTX 4090 log", lambda: rtx4090.compare(given.data / "llmservingsim_rtx4090")),
        ("Dynamo profiles", lambda: planner.compare(given.data / "dynamo_planner_profiles.csv")),
    ]
    sample = serving.sample()
    if sample is None:
        print("SGLang points are left out: pip install 'kvferry[silicon]'", file=sys.stderr)
    else:
        parts += [("colocated points", lambda: serving.compare(sample))]
        parts += [("split points", lambda: split.compare(sample))]
    figures: list[Figure] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("comparing", total=len(parts))
        for name, compare in parts:
            progress.update(task, description=name)
            figures += compare()
            progress.advance(task)
    if given.json:
        print(json.dumps({"figures": [figure.told() for figure in figures], "why": WHY}, indent=1))
    else:
        show(figures)


def show(figures: list[Figure]) -> None:
    console = Console(width=80)
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True, min_width=30)
    for name in ("n", "real", "sim", "error", "p90", "bias", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    part = ""
    for figure in figures:
        if figure.part != part:
            part = figure.part
            table.add_row(f"[bold]{part}")
        table.add_row(*_cells(figure))
    console.print(table)
    console.print(
        "\nSeconds. error: sim / real - 1; of many points its median size (bias: its median); max: as asked."
    )
    for note in dict.fromkeys(f"{f.part}, {f.metric}: {f.note}" for f in figures if f.note):
        console.print(f"- {note}", highlight=False)
    worse = ", ".join(f"{f.part}, {f.metric} {f.error:+.0%}" for f in figures if f.worse)
    console.print(f"\nWorse than asked: {worse or 'nothing'}.", highlight=False)
    if serving.sample() is not None:
        for name, why in WHY.items():
            console.print(f"\n{name}, likely causes: {why}", highlight=False)


def _cells(figure: Figure) -> list[str]:
    many = figure.measured is None
    return [
        f"  {figure.metric}",
        str(figure.points),
        "" if figure.measured is None else f"{figure.measured:.3g}",
        "" if figure.simulated is None else f"{figure.simulated:.3g}",
        f"{figure.error:{'' if many else '+'}.{0 if abs(figure.error) > 1 else 1}%}",
        "" if figure.p90 is None else f"{figure.p90:.0%}",
        "" if figure.bias is None else f"{figure.bias:+.0%}",
        "" if figure.limit is None else f"{figure.limit:.0%}",
    ]


if __name__ == "__main__":
    main()
