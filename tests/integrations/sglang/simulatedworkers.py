"""Asking simulated workers, for the tests beside this file."""

import asyncio
import json
from typing import Any

import aiohttp

from kvferry.integrations.cli.worker_sim import engine_of
from kvferry.models.simulator.spec import ClusterSpec
from kvferry.policy.worker import Role

PROMPT = list(range(300))


def cluster_spec(**workers: int) -> ClusterSpec:
    """p: prefill, d: decode, l: decode with local prefill, c: colocated; so many of each."""
    roles = {"p": Role.PREFILL, "d": Role.DECODE, "l": Role.DECODE, "c": Role.COLOCATED}
    engines = [
        engine_of(roles[letter], f"{letter}{place}", local_prefill=letter == "l")
        for letter, count in workers.items()
        for place in range(count)
    ]
    return ClusterSpec("test", tuple(engines))


async def post(session: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, Any]:
    async with session.post(url, json=body) as answer:
        raw = await answer.read()
        return answer.status, json.loads(raw) if raw else None


async def idle(worker: Any) -> None:
    for _ in range(500):
        if not worker.busy:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("requests are still in flight")


async def events(session: aiohttp.ClientSession, url: str, body: Any) -> list[Any]:
    """The stream's JSON events; it ended with [DONE]."""
    async with session.post(url, json={**body, "stream": True}) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = [line for line in (await answer.read()).split(b"\n\n") if line]
    assert lines[-1] == b"data: [DONE]"
    return [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]


def wanted(tokens: int, **more: Any) -> dict[str, Any]:
    return {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}, **more}
