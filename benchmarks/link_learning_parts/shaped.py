"""A link that is degraded and recovers, between real SGLang workers: traffic, and what is done to a wire."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
from link_learning_parts.phases import Phases
from prediction_parts.deployment import DECODE, deployment
from prediction_parts.wire import shaped

POLICY = "kvferry"
# Slow enough for moves to take longer than prefills, whose times two busy cores blur. The second wire is used
# while the first is slower, or is believed to be: of two that are alike one request at a time needs but one,
# and requests that run beside each other make each other's times.
RATES = 200.0, 80.0
TENFOLD = 0.1
# The slow one ends soon after the wire was tried in vain: from there the way back is longest.
WHOLE_S, SLOW_S, AGAIN_S = 90.0, 60.0, 75.0
PROMPT_TOKENS = 1000, 2000
OUTPUT_TOKENS = 4
FIRST_ID, LAST_ID = 300, 4000
ANSWER_S = 60.0
# Only splits are left: the decode worker does not prefill, and the workers have one transport.
SWITCHES = {"KVFERRY_LOCAL_PREFILL": "0", "KVFERRY_DUAL_TRANSPORT": "0"}


def run(folder: Path, seed: int, report: Callable[[float, float], None]) -> None:
    """FOLDER/decisions.jsonl is the router's log, FOLDER/phases.json (`Phases`) what was done when. Prefill
    workers stand behind wires of RATES (Mbit/s) of one decode worker; requests come one at a time.

    Raises NoWire, LocalWorkerError, RuntimeError when the deployment does not come up.
    """
    with ExitStack() as stack:
        wires = [stack.enter_context(shaped(rate)) for rate in RATES]
        url = stack.enter_context(deployment(folder, POLICY, wires, near=(DECODE,), switches=SWITCHES))
        first = wires[0]
        phases = (
            (WHOLE_S, lambda: first.limit(first.mbit_per_s * TENFOLD)),
            (SLOW_S, lambda: first.limit(first.mbit_per_s)),
            (AGAIN_S, lambda: None),
        )
        ends_s, answers = asyncio.run(_phases(url, seed, phases, report))
    slow_s, again_s, end_s = ends_s
    hosts = tuple(wire.address for wire in wires)
    Phases(hosts, RATES, slow_s, again_s, end_s, dict(answers)).write(folder)


async def _phases(
    url: str,
    seed: int,
    phases: tuple[tuple[float, Callable[[], None]], ...],
    report: Callable[[float, float], None],
) -> tuple[list[float], Counter[str]]:
    """When (Unix seconds) each phase ended, after which its change was made, and the answers."""
    rng, answers, ends_s = random.Random(seed), Counter[str](), list[float]()
    total_s, before_s = sum(length_s for length_s, _ in phases), 0.0
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session:
        for length_s, change in phases:
            begun_s = time.monotonic()
            while (passed_s := time.monotonic() - begun_s) < length_s:
                report(before_s + passed_s, total_s)
                answers[await _ask(session, url, _body(rng))] += 1
            before_s += length_s
            await asyncio.to_thread(change)
            ends_s.append(time.time())
    return ends_s, answers


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> str:
    try:
        async with session.post(f"{url}/generate", json=body) as answer:
            await answer.read()
            return str(answer.status)
    except (aiohttp.ClientError, TimeoutError) as error:
        return type(error).__name__


def _body(rng: random.Random) -> dict[str, Any]:
    """Random tokens: nothing of them is cached."""
    ids = rng.choices(range(FIRST_ID, LAST_ID), k=rng.randint(*PROMPT_TOKENS))
    sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": OUTPUT_TOKENS}
    return {"input_ids": ids, "sampling_params": sampling, "stream": True}
