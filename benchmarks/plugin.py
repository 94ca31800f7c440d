"""What telemetry costs a worker's scheduler process, in CPU per request: `python benchmarks/plugin.py`.

Two sets of real CPU workers, one with telemetry and one without, serve the same requests in turns; which goes
first alternates, since the machine is never quiet. Printed are telemetry's own account (CPU seconds in its
hooks and its thread, from /server_info) and the paired difference of the CPU time of the scheduler
processes, which also holds what the account cannot see. The target is 2%. `--control` turns telemetry off on
both sides: what is then printed is the difference of equals, the noise of this machine.
"""

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from kvferry.integrations.redis.embedded import EmbeddedValkey
from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.spec import WorkerOptions, WorkerSpec

TARGET = 0.02
KINDS = {
    "colocated": (WorkerSpec("colocated"),),
    "pair": (WorkerSpec("prefill", "mooncake"), WorkerSpec("decode", "mooncake")),
}
IN_FLIGHT = 4
FLUSH_S = 0.5  # until the sink has sent a round's last records
ACCOUNT = ("hook_us", "transfer_us", "sink_us")


@dataclass(frozen=True, slots=True)
class Side:
    """One set of workers and the process ids of their schedulers."""

    cluster: LocalCluster
    schedulers: tuple[int, ...]

    def cpu_s(self) -> float:
        return sum(cpu_s(pid) for pid in self.schedulers)


def cpu_s(pid: int) -> float:
    """User and system time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scheduler_of(main_pid: int) -> int:
    """The scheduler's process among the children of a worker's main process."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == main_pid and b"scheduler" in (stat.parent / "cmdline").read_bytes():
                return int(stat.parent.name)
    raise RuntimeError(f"no scheduler below process {main_pid}")


@contextlib.contextmanager
def side(kind: str, telemetry: bool, redis: str) -> Iterator[Side]:
    env = (("KVFERRY_TELEMETRY", str(int(telemetry))), ("KVFERRY_REDIS", redis))
    with LocalCluster(KINDS[kind], WorkerOptions(env=env)) as cluster:
        yield Side(cluster, tuple(scheduler_of(worker.pid) for worker in cluster.workers))


async def serve(session: aiohttp.ClientSession, cluster: LocalCluster, seed: int, requests: int) -> None:
    """The same requests for the same seed, IN_FLIGHT at a time."""
    draw, gate = random.Random(seed), asyncio.Semaphore(IN_FLIGHT)

    async def leg(url: str, body: dict[str, Any]) -> None:
        async with session.post(url + "/generate", json=body) as answer:
            if answer.status != 200:
                raise RuntimeError(f"{url}: {answer.status} {await answer.text()}")
            await answer.read()

    async def one(prompt: list[int], tokens: int, room: int) -> None:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body: dict[str, Any] = {"input_ids": prompt, "sampling_params": sampling}
        for worker in cluster.of("prefill"):
            body |= {
                "bootstrap_host": worker.options.host,
                "bootstrap_port": worker.bootstrap_port,
                "bootstrap_room": room,
            }
        async with gate:
            await asyncio.gather(*(leg(worker.url, body) for worker in cluster.workers))

    await asyncio.gather(
        *(
            one(draw.choices(range(94), k=draw.randint(16, 512)), draw.randint(8, 48), draw.getrandbits(62))
            for _ in range(requests)
        )
    )


async def own_account(session: aiohttp.ClientSession, cluster: LocalCluster) -> Counter[str]:
    """CPU microseconds that telemetry says it took, over the workers; nothing where it is switched off."""
    total: Counter[str] = Counter()
    for worker in cluster.workers:
        async with session.get(worker.url + "/server_info") as answer:
            told = (await answer.json())["internal_states"][0]["kvferry"]["features"]["telemetry"]
        if told["on"]:
            total.update({name: told[name] for name in ACCOUNT})
        elif told["why"] != "switched off":
            raise RuntimeError(f"{worker.name}: telemetry is off: {told['why']}")
    return total


async def measure(kind: str, rounds: int, requests: int, redis: str, control: bool) -> bool:
    """Print one kind's figures; whether the target is met."""
    print(f"{kind}: starting", file=sys.stderr, flush=True)
    timeout = aiohttp.ClientTimeout(total=300)
    own: Counter[str] = Counter()
    pairs = []
    with side(kind, not control, redis) as on, side(kind, False, redis) as off:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for one in (on, off):
                await serve(session, one.cluster, 0, 2 * requests)  # the first requests pay for imports
            for number in range(1, rounds + 1):
                spent = {}
                for one in (on, off) if number % 2 else (off, on):
                    before, began_s = await own_account(session, one.cluster), one.cpu_s()
                    await serve(session, one.cluster, number, requests)
                    await asyncio.sleep(FLUSH_S)
                    spent[one is on] = (one.cpu_s() - began_s) / requests
                    own.update(await own_account(session, one.cluster))
                    own.subtract(before)
                pairs.append((spent[True], spent[False]))
                print(f"{kind}: {number} of {rounds} rounds", file=sys.stderr, flush=True)
    return report(kind, pairs, {name: own[name] / (rounds * requests) for name in ACCOUNT})


def report(kind: str, pairs: list[tuple[float, float]], own_us: dict[str, float]) -> bool:
    """Per request: CPU with and without, telemetry's own account, and the paired difference."""
    with_s, without_s = (statistics.fmean(column) for column in zip(*pairs, strict=True))
    ratios = [(on - off) / off for on, off in pairs]
    low, middle, high = interval([statistics.median(draw) for draw in resampled(ratios)])
    quarters = statistics.quantiles(ratios, n=4)
    total_us = sum(own_us.values())
    share = total_us / 1e6 / without_s
    parts = ", ".join(f"{name.removesuffix('_us')} {spent:.0f}" for name, spent in own_us.items())
    other = "with telemetry" if total_us else "on the other side, which has none either"
    print(f"{kind}: scheduler CPU {without_s * 1e3:.2f} ms per request, {with_s * 1e3:.2f} ms {other}")
    print(f"  its own account:   {total_us:6.0f} us per request, {share:6.2%} (target {TARGET:.0%}); {parts}")
    print(
        f"  paired difference: {middle * without_s * 1e6:6.0f} us per request, {middle:6.2%}, 90% interval "
        f"{low:.2%} to {high:.2%}; {len(pairs)} pairs, half of them between {quarters[0]:.2%} and "
        f"{quarters[2]:.2%}"
    )
    return share <= TARGET


def resampled(values: list[float], draws: int = 2000) -> Iterator[list[float]]:
    draw = random.Random(1)
    return (draw.choices(values, k=len(values)) for _ in range(draws))


def interval(values: list[float]) -> tuple[float, float, float]:
    """5th, 50th and 95th percentile."""
    cuts = statistics.quantiles(values, n=20)
    return cuts[0], cuts[9], cuts[18]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="pairs of measurements (at least 4)")
    parser.add_argument("--requests", type=int, default=30, help="per round and side")
    parser.add_argument("--control", action="store_true", help="compare two sides without telemetry")
    parser.add_argument("--kind", choices=[*KINDS, "both"], default="both")
    given = parser.parse_args()
    if given.rounds < 4:
        parser.error("--rounds: at least 4")
    store = EmbeddedValkey()
    asyncio.run(store.start())
    try:
        kinds = list(KINDS) if given.kind == "both" else [given.kind]
        met = [
            asyncio.run(measure(kind, given.rounds, given.requests, store.url, given.control))
            for kind in kinds
        ]
    finally:
        store.stop()
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
