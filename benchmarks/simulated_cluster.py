"""A real router before many simulated workers: `python benchmarks/simulated_cluster.py`.

Starts `kvferry worker-sim` (16 workers in one process: 4 prefill, 4 decode that may prefill, 8 colocated),
`kvferry serve` with its own store and log, and sends requests open-loop: Poisson arrivals at --rate, whatever
has been answered. Prompts are token ids of lognormal length (median 250, at most 2,000), outputs uniform from
16 to 112 tokens, which keeps some 200 requests in flight; every second request streams, at one event per 8
tokens. That is about what a router, the workers and a client in Python can carry on two cores at 200
requests/s. Prints errors, the achieved rate, what the client saw, and predicted against simulated TTFT out of
the router's log. Ends with 1 when a request failed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from simulated_load import load

from kvferry.integrations.redis.embedded import EmbeddedValkey

STREAM_INTERVAL = 8
READY_S = 60.0
WORKER = 'model = "Qwen/Qwen3-32B"\ngpu = "h200"\ntp = 2\n'


def cluster_toml(workers: int) -> str:
    """A quarter prefill, a quarter decode that may prefill, the rest colocated."""
    quarter = max(1, workers // 4)
    roles = (
        ("prefill", quarter, ""),
        ("decode", quarter, "local_prefill = true\n"),
        ("colocated", workers - 2 * quarter, ""),
    )
    tables = [
        f'[[worker]]\nrole = "{role}"\ncount = {count}\n{WORKER}{more}'
        for role, count, more in roles
        if count
    ]
    return "\n".join(tables)


@contextlib.contextmanager
def process(words: Sequence[str], log: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """One kvferry command, ended with SIGTERM at the end of the block."""
    command = [sys.executable, "-m", "kvferry.integrations.cli.app", *words]
    with log.open("wb") as out:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, "COLUMNS": "1000", **env},
            start_new_session=True,
        )
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)


@contextlib.contextmanager
def store(*, wanted: bool) -> Iterator[str]:
    """The URL of a store that workers and router share, "" where none is wanted."""
    if not wanted:
        yield ""
        return
    server = EmbeddedValkey()
    asyncio.run(server.start())
    try:
        yield server.url
    finally:
        server.stop()


def told(log: Path, pattern: str, started: subprocess.Popen[bytes]) -> re.Match[str]:
    """The first line of a log that says so."""
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s and started.poll() is None:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found
        time.sleep(0.05)
    raise SystemExit(f"{log.name}: did not come up:\n{log.read_text(errors='replace')[-2000:]}")


def cpu_s(pid: int) -> float:
    """User and system time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ready(url: str, workers: int) -> None:
    """Until the router knows all of them."""
    async with aiohttp.ClientSession() as session:
        for _ in range(round(READY_S / 0.1)):
            async with session.get(f"{url}/kvferry/workers") as answer:
                rows = (await answer.json())["workers"]
            if sum(row["healthy"] for row in rows) == workers:
                return
            await asyncio.sleep(0.1)
    raise SystemExit(f"the router does not know all {workers} workers")


def quantiles(values: Sequence[float], name: str) -> dict[str, float]:
    """p50, p90, p99 in seconds."""
    if not values:
        return {}
    ranked = sorted(values)
    return {
        f"{name}_p{percent}_s": round(ranked[min(len(ranked) - 1, len(ranked) * percent // 100)], 5)
        for percent in (50, 90, 99)
    }


def compared(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Predicted against simulated TTFT, as the router's log has them."""
    pairs = [
        (one["terms"]["ttft_s"], one["outcome"]["ttft_s"], one["chosen"]["mode"])
        for one in records
        if one["outcome"] and one["outcome"]["status"] == "ok" and one["outcome"].get("ttft_s")
    ]
    answer: dict[str, Any] = {
        "logged": len(records),
        "status": dict(Counter(one["outcome"]["status"] for one in records if one["outcome"])),
        "split_share": round(
            sum(one["chosen"]["mode"] == "split" for one in records) / max(1, len(records)), 4
        ),
        "moves_measured": sum(bool(one["outcome"] and one["outcome"].get("moved")) for one in records),
        "rescued": sum(bool(one["outcome"] and one["outcome"].get("rescued_from")) for one in records),
        "reasons": dict(Counter(one["reason"] for one in records).most_common()),
        "ttft_pairs": len(pairs),
        "decide_us_p50": round(statistics.median(one["decide_us"] for one in records), 1)
        if records
        else None,
    }
    for mode in ("colocated", "split"):
        mine = [(term, seen_s) for term, seen_s, of in pairs if of == mode]
        if mine:
            answer[mode] = {
                **quantiles([term["p50"] for term, _ in mine], "predicted_ttft"),
                **quantiles([seen_s for _, seen_s in mine], "simulated_ttft"),
                "error_median": round(statistics.median(abs(t["p50"] - s) / s for t, s in mine), 4),
                "coverage_p90": round(sum(s <= t["p90"] for t, s in mine) / len(mine), 4),
            }
    return answer


def read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl*")) for line in file.open()]


async def measure(args: argparse.Namespace, folder: Path, redis: str) -> dict[str, Any]:
    """Start everything, send, stop the router, read its log."""
    file, env = folder / "cluster.toml", {"KVFERRY_STATE_DIR": str(folder / "state")}
    file.write_text(cluster_toml(args.workers))
    words = ["worker-sim", "--cluster", str(file), "--port", "0", "--json", "--seed", str(args.seed)]
    words += ["--stream-interval", str(STREAM_INTERVAL), "--time-scale", str(args.time_scale)]
    words += ["--redis", redis] if redis else []
    with process(words, folder / "workers.log", env) as workers:
        line = told(folder / "workers.log", r'\{"cluster".*\}', workers).group(0)
        serve = json.loads(line)["serve"].split()[1:]
        serve += ["--port", "0", "--policy", args.policy]
        with process(serve, folder / "router.log", env) as router:
            url = told(folder / "router.log", r"kvferry \S+ on (http://\S+),", router).group(1)
            await ready(url, args.workers)
            # until connections are open and pairs have met
            await load(url, min(20.0, args.rate), 1.0, args.streamed, args.seed + 1)
            pids = {"workers": workers.pid, "router": router.pid, "client": os.getpid()}
            before = {name: cpu_s(pid) for name, pid in pids.items()}
            seen = await load(url, args.rate, args.duration, args.streamed, args.seed)
            took_s = max(args.duration, seen.sent_for_s)
            used = {name: cpu_s(pid) - before[name] for name, pid in pids.items()}
    records = read_log(folder / "state")[-seen.sent :]
    return {
        "workers": args.workers,
        "sent": seen.sent,
        "answered": seen.answered,
        "errors": dict(seen.errors),
        "offered_rps": args.rate,
        "achieved_rps": round(seen.answered / took_s, 2),
        "most_in_flight": seen.most_in_flight,
        **quantiles(seen.late_s, "sent_late"),
        **quantiles(seen.ttft_s, "client_ttft"),
        **quantiles(seen.e2e_s, "client_e2e"),
        "cpu_s_per_1000": {name: round(1000 * spent / max(1, seen.sent), 3) for name, spent in used.items()},
        "log": compared(records),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds")
    parser.add_argument("--streamed", type=float, default=0.5, help="share of requests that stream")
    parser.add_argument("--time-scale", type=float, default=1.0)
    parser.add_argument("--policy", default="kvferry")
    parser.add_argument("--telemetry", action="store_true", help="workers send what kvferry's plugin does")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--keep", type=Path, help="a folder for the logs, which are removed otherwise")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-") as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with store(wanted=args.telemetry) as redis:
            answer = uvloop.run(measure(args, folder, redis))
    print(json.dumps(answer) if args.json else json.dumps(answer, indent=1))
    if answer["errors"] or answer["answered"] != answer["sent"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
