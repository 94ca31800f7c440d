"""Requests: prompts of 16 to 4,000 random tokens, some with a beginning in common."""

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

PROMPT_TOKENS = (16, 4000)
OUTPUT_TOKENS = (8, 64)
FIRST_ID, LAST_ID = 300, 4000
BEGINNINGS = 12
SHARED = 0.3
SEGMENT_S = 30.0
PACES = (0.5, 1.0, 1.5)
ANSWER_S = 180.0


@dataclass(slots=True)
class Traffic:
    """`rate_rps` is the mean of Poisson arrivals; every SEGMENT_S another of PACES times it holds. One that
    would be more than `in_flight` at once waits outside, and its clock with it: two cores that run every
    worker can do one prefill beside one decode, and beyond that no time says anything of a worker."""

    rate_rps: float
    seed: int
    in_flight: int = 64
    _rng: random.Random = field(init=False)
    _beginnings: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._beginnings = [self._ids(round(self._length())) for _ in range(BEGINNINGS)]

    def body(self) -> dict[str, Any]:
        """Of POST /generate. Lengths are uniform in their logarithm."""
        length = round(self._length())
        ids: list[int] = []
        if self._rng.random() < SHARED:
            ids = self._rng.choice(self._beginnings)[: length - 1]
        ids = ids + self._ids(length - len(ids))
        sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": self._rng.randint(*OUTPUT_TOKENS)}
        return {"input_ids": ids, "sampling_params": sampling, "stream": True}

    async def send(self, url: str, requests: int, told: Callable[[int], None]) -> Counter[str]:
        """Answers by what became of them; `told` of each that has ended."""
        results: Counter[str] = Counter()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        room = asyncio.Semaphore(self.in_flight)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

            async def ask(body: dict[str, Any]) -> None:
                try:
                    async with session.post(f"{url}/generate", json=body) as answer:
                        await answer.read()
                        results[str(answer.status)] += 1
                except (aiohttp.ClientError, TimeoutError) as error:
                    results[type(error).__name__] += 1
                finally:
                    room.release()
                told(results.total())

            begun_s = due_s = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for _ in range(requests):
                    pace = PACES[int((due_s - begun_s) / SEGMENT_S) % len(PACES)]
                    due_s += self._rng.expovariate(self.rate_rps * pace)
                    await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                    await room.acquire()
                    group.create_task(ask(self.body()))
        return results

    def _length(self) -> float:
        low, high = map(math.log, PROMPT_TOKENS)
        return math.exp(self._rng.uniform(low, high))

    def _ids(self, count: int) -> list[int]:
        return self._rng.choices(range(FIRST_ID, LAST_ID), k=max(1, count))
