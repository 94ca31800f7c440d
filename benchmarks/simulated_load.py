"""Open-loop load on a router, for `simulated_cluster.py` beside this file."""

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import aiohttp
from rich.progress import Progress

PROMPT_MEDIAN, PROMPT_SIGMA, PROMPT_MOST = 250, 0.8, 2000
OUTPUT_TOKENS = (16, 112)
ID_WIDTH = 6  # of an id and the comma after it
ANSWER_S = 60.0


@dataclass(slots=True)
class Seen:
    """What the client saw. Times in seconds."""

    sent: int = 0
    answered: int = 0
    late_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    sent_for_s: float = 0.0
    in_flight: int = 0
    most_in_flight: int = 0


def bodies(rng: random.Random, share_streamed: float) -> Iterator[tuple[bytes, bool]]:
    """Endless requests and whether each streams. Ids are cut from one long list of them."""
    pool = ",".join(str(rng.randrange(10_000, 99_999)) for _ in range(50 * PROMPT_MOST)).encode()
    owed = 0.0
    while True:
        length = min(PROMPT_MOST, max(1, round(PROMPT_MEDIAN * math.exp(PROMPT_SIGMA * rng.gauss(0, 1)))))
        at = ID_WIDTH * rng.randrange(len(pool) // ID_WIDTH - length)
        owed += share_streamed
        streams = owed >= 1.0
        owed -= streams
        yield (
            (
                b'{"input_ids":[%b],"sampling_params":{"max_new_tokens":%d,"ignore_eos":true},"stream":%b}'
                % (
                    pool[at : at + ID_WIDTH * length - 1],
                    rng.randint(*OUTPUT_TOKENS),
                    b"true" if streams else b"false",
                )
            ),
            streams,
        )


async def ask(session: aiohttp.ClientSession, url: str, body: bytes, streams: bool, seen: Seen) -> None:
    """One request; whatever is not a whole answer is an error."""
    began_s = time.perf_counter()
    seen.in_flight += 1
    seen.most_in_flight = max(seen.most_in_flight, seen.in_flight)
    try:
        async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
            last = b""
            if streams and answer.status == 200:
                async for chunk in answer.content.iter_any():
                    if not last:
                        seen.ttft_s.append(time.perf_counter() - began_s)
                    last = chunk
                whole = last.rstrip().endswith(b"data: [DONE]") and b'"error"' not in last
            else:
                last = await answer.read()
                whole = answer.status == 200 and b'"finish_reason":{"type":"length"' in last
        if whole:
            seen.answered += 1
            seen.e2e_s.append(time.perf_counter() - began_s)
        else:
            seen.errors[f"status {answer.status}: {last[-200:].decode(errors='replace')}"] += 1
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        seen.errors[f"{type(error).__name__}: {error}"] += 1
    finally:
        seen.in_flight -= 1


async def load(url: str, rate_rps: float, duration_s: float, streamed: float, seed: int) -> Seen:
    """Poisson arrivals until `duration_s`, then until all is answered."""
    seen, rng = Seen(), random.Random(seed)
    made = bodies(rng, streamed)
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    connector = aiohttp.TCPConnector(limit=0)
    tasks: set[asyncio.Task[None]] = set()
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        with Progress(transient=True) as progress:
            bar = progress.add_task("sending", total=duration_s)
            began_s, due_s = time.perf_counter(), 0.0
            while (due_s := due_s + rng.expovariate(rate_rps)) < duration_s:
                wait_s = began_s + due_s - time.perf_counter()
                if wait_s > 0.0:
                    await asyncio.sleep(wait_s)
                seen.late_s.append(max(0.0, time.perf_counter() - began_s - due_s))
                seen.sent += 1
                task = asyncio.create_task(ask(session, f"{url}/generate", *next(made), seen))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                if seen.sent % 50 == 0:
                    progress.update(bar, completed=due_s)
        seen.sent_for_s = time.perf_counter() - began_s
        await asyncio.gather(*tasks)
    return seen
