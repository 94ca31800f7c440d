"""How well TTFT and every term are predicted for real SGLang workers on this machine's CPU.

    python benchmarks/prediction.py [--requests 2200] [--rate 4] [--in-flight 1] [--wires 1000,200]
        [--keep DIR]
    python benchmarks/prediction.py --from DIR [--from DIR ...] [--json]

A prefill and a decode worker share the machine; one more prefill worker stands at the far end of each wire,
a network namespace whose rate (Mbit/s) the kernel holds down. Before them a router draws the mode, the
workers and the transport (Mooncake or NIXL) of each request. From its log a model is trained; on what came
after that its errors, and whether its 90th percentiles hold, are compared with what needs no model. Wires
need root and iproute2: without, a line says so and the two workers do alone. 2,200 requests take a quarter
of an hour, with 4 workers 8 GiB. One request at a time: two cores run everything, and what runs beside a
request, another one or other work, is seen as noise. Exit code 1: a goal was missed.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from prediction_parts.deployment import deployment
from prediction_parts.judgement import HELD_OUT, Judgement, judge
from prediction_parts.table import show
from prediction_parts.traffic import Traffic
from prediction_parts.wire import NoWire, Wire, shaped
from rich.console import Console

from kvferry.integrations.learning.progress import progress
from kvferry.integrations.log.source import SourceError
from kvferry.integrations.sglang.local.worker import LocalWorkerError
from kvferry.models.training.fit import FitError

POLICY = "random_by_workers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=2200)
    parser.add_argument("--rate", type=float, default=4.0, help="mean of Poisson arrivals, requests/s")
    parser.add_argument("--in-flight", type=int, default=1, help="requests at once, at most")
    parser.add_argument("--wires", default="1000,200", help="Mbit/s each, or none")
    parser.add_argument("--keep", type=Path, help="a folder for logs that stay")
    parser.add_argument("--from", dest="source", action="append", help="logs that are there already")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="requests to judge by, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        found = _judged(given)
    except (LocalWorkerError, FitError, SourceError, OSError, RuntimeError) as error:
        sys.exit(f"prediction: {error}")
    except KeyboardInterrupt:
        sys.exit("prediction: stopped")
    if given.json:
        print(json.dumps(found.told(), allow_nan=False))
    else:
        show(found, Console(highlight=False))
    sys.exit(0 if found.reached else 1)


def _judged(given: argparse.Namespace) -> Judgement:
    if given.source:
        return judge(given.source, given.seed, given.held_out)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rates = [] if given.wires == "none" else [float(rate) for rate in given.wires.split(",")]
        collect(folder, given.requests, Traffic(given.rate, given.seed, given.in_flight), rates)
        return judge([str(folder / "decisions.jsonl")], given.seed, given.held_out)


def collect(folder: Path, requests: int, traffic: Traffic, rates: list[float]) -> None:
    """FOLDER/decisions.jsonl; FOLDER/paths.json names what leads from each prefill worker."""
    with ExitStack() as stack:
        wires = list[Wire]()
        try:
            for rate in rates:
                wires.append(stack.enter_context(shaped(rate)))
        except NoWire as error:
            print(f"prediction: {len(wires)} of {len(rates)} wires: {error}", file=sys.stderr)
        names = {wire.address: f"{wire.mbit_per_s:g} Mbit/s" for wire in wires}
        (folder / "paths.json").write_text(json.dumps(names))
        print("prediction: starting workers", file=sys.stderr)
        url = stack.enter_context(deployment(folder, POLICY, wires))
        with progress("sending") as report:
            results = asyncio.run(traffic.send(url, requests, lambda done: report(done, requests)))
        print(f"prediction: answers {dict(results)}", file=sys.stderr)


if __name__ == "__main__":
    main()
