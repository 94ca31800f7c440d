"""Clients that speak HTTP badly, and the end of the router while others still listen."""

import asyncio
import contextlib
import gc
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvferry.integrations.sglang.poller import Target
from kvferry.integrations.sglang.serving import running
from kvferry.integrations.sglang.settings import Settings

TEXT = {"text": "hello", "sampling_params": {"max_new_tokens": 4}}
HEAD = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
ABUSES = {
    "no JSON in gzip": HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    "bad chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
    "half a body": HEAD + b"Content-Length: 100\r\n\r\n{",
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a header of 20 kB": HEAD + b"X-Long: " + b"a" * 20_000 + b"\r\n\r\n",
    "odd key": HEAD + b"Authorization: Bearer \xff\xfe\r\nContent-Length: 2\r\n\r\n{}",
    "unknown method": b"BREW /generate HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("abuse", ABUSES)
async def test_bad_http_is_refused_or_closed_without_noise(
    worker: Any, route: Any, caplog: pytest.LogCaptureFixture, abuse: str
) -> None:
    caplog.set_level(logging.WARNING)
    one = await worker()
    router = await route(one, api_key="k" if abuse == "odd key" else None)
    host, port = router.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(ABUSES[abuse])
    await writer.drain()
    if abuse == "half a body":
        await asyncio.sleep(0.05)
        writer.close()
    else:
        async with asyncio.timeout(10):
            line = await reader.readline()
        assert b" 40" in line
        writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    assert (await router.get("/health")).status == 200
    assert not one.seen
    assert router.idle()
    assert "Traceback" not in caplog.text


async def test_listeners_are_sent_home_when_the_router_ends(
    worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFERRY_STATE_DIR", str(tmp_path))
    settings = Settings(targets=(Target((await worker()).url),), port=0, no_log_file=True)
    async with aiohttp.ClientSession() as session:
        async with running(settings) as (_, url):
            listening = await session.get(url + "/kvferry/decisions")
        assert await listening.content.read() == b""


def legs_left() -> list[str]:
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("Legs.")]


async def no_leases(router: Any) -> bool:
    return await router.leases() == {}


async def test_nothing_is_left_of_many_requests(
    pair: Any, route: Any, fake: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Of whatever ending: no task, no watcher, no entry, no forgotten exception."""
    caplog.set_level(logging.WARNING)
    workers = await pair(prefills=2, decodes=2)
    router = await route(*workers.all, policy="coin(0.7)")
    troubles = [{}, {"status": 500}, {"trouble": "reset"}, {"trouble": "reset", "after": 1}, {"status": 400}]

    async def one(number: int) -> None:
        for each in workers.all:
            each.acts.append(fake.Act(**troubles[number % len(troubles)]))
        task = asyncio.create_task(router.post(body={**TEXT, "stream": number % 2 == 0}))
        if number % 7 == 0:
            await asyncio.sleep(0.01)
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task

    for start in range(0, 60, 12):
        await asyncio.gather(*(one(number) for number in range(start, start + 12)))
        for each in workers.all:
            each.acts.clear()
    await eventually(lambda: not router.ferry.legs._background, "aborts done")
    await eventually(router.idle, "book empty")
    await eventually(lambda: no_leases(router), "leases released")
    await eventually(lambda: all(each.running == 0 for each in workers.all), "workers idle")
    await eventually(lambda: not legs_left(), "no legs left")
    gc.collect()
    assert all(not member.watchers for member in router.ferry.fleet.members.values())
    assert all(record.outcome is not None for record in router.ferry.recent._records.values())
    assert "never retrieved" not in caplog.text
    assert "Traceback" not in caplog.text
    metrics = (await router.get("/metrics")).raw.decode()
    counted = [line for line in metrics.splitlines() if line.startswith("kvferry_requests_total")]
    assert sum(float(line.rpartition(" ")[2]) for line in counted) == len(router.ferry.recent._records)
    assert json.loads((await router.get("/ready")).raw)["status"] == "ready"
