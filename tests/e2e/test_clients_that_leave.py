"""A client that goes away leaves nothing behind: not on a worker, not in the book, not in the store."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvferry.integrations.sglang.local.cluster import LocalCluster

# As issue 2 has it. Measured from the moment of leaving, on workers that may share two cores with others.
CLEAN_WITHIN_S = 2.0
MANY_TOKENS = 4000
WAYS = ("colocated", "mooncake", "nixl")


def body_of(ids: list[int], stream: bool, **more: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": MANY_TOKENS, "ignore_eos": True}
    return {"input_ids": ids, "stream": stream, "sampling_params": sampling, **more}


async def running(cluster: LocalCluster, watcher: Any) -> bool:
    """Whether some worker tells of a running request: else a test of its end would prove nothing."""
    for _ in range(100):
        if any([(await watcher.busy(worker))[0] for worker in cluster.workers]):
            return True
        await asyncio.sleep(0.05)
    return False


async def leave_mid_stream(
    session: Any,
    url: str,
    body: dict[str, Any],
    path: str = "/generate",
    until: Callable[[], Awaitable[Any]] | None = None,
) -> None:
    """Read some of the stream, wait for `until`, then close the connection."""
    async with session.post(url + path, json=body) as answer:
        assert answer.status == 200
        for _ in range(3):
            assert await answer.content.readany()
        if until:
            assert await until()
        answer.close()


async def leave_after(session: Any, url: str, body: dict[str, Any], wait_s: float) -> None:
    """Give up on an answer that has not begun."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            async with session.post(url + "/generate", json=body) as answer:
                await answer.read()
        raise AssertionError("the answer was there before the client could leave")


async def all_clean(cluster: LocalCluster, routes: Any, watcher: Any, record_property: Any) -> None:
    routers = [routes.of(way) for way in WAYS]
    took_s = await watcher.until_idle(routers, cluster.workers, within_s=CLEAN_WITHIN_S)
    record_property("clean_after_s", took_s)
    print(f"clean after {took_s:.2f} s")
    assert all("Traceback" not in router.log for router in routers)


@pytest.mark.parametrize("way", WAYS)
async def test_in_the_middle_of_a_stream(
    cluster: LocalCluster,
    routes: Any,
    watcher: Any,
    direct: Any,
    prompt_ids: Any,
    record_property: Any,
    way: str,
) -> None:
    body = body_of(prompt_ids(200, seed=20), True)
    await leave_mid_stream(direct.session, routes.of(way).url, body, until=lambda: running(cluster, watcher))
    await all_clean(cluster, routes, watcher, record_property)
    (record,) = [one for one in routes.of(way).records() if one["request"]["max_new_tokens"] == MANY_TOKENS]
    assert record["outcome"]["status"] == "cancelled"


@pytest.mark.parametrize("wait_s", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("way", WAYS)
async def test_before_the_first_byte(
    cluster: LocalCluster,
    routes: Any,
    watcher: Any,
    direct: Any,
    prompt_ids: Any,
    record_property: Any,
    way: str,
    wait_s: float,
) -> None:
    """During dispatch and bootstrap, during prefill, and while tokens that nobody saw are decoded."""
    body = body_of(prompt_ids(4000, seed=f"{way}{wait_s}"), False)
    await leave_after(direct.session, routes.of(way).url, body, wait_s)
    await all_clean(cluster, routes, watcher, record_property)


@pytest.mark.parametrize("way", WAYS)
async def test_eight_at_once_some_still_queued(
    cluster: LocalCluster,
    routes: Any,
    watcher: Any,
    direct: Any,
    prompt_ids: Any,
    record_property: Any,
    way: str,
) -> None:
    """Eight of 2,000 + 4,000 tokens do not fit the workers' KV at once: some are queued."""
    url = routes.of(way).url
    bodies = [body_of(prompt_ids(2000, seed=30 + number), number % 2 == 0) for number in range(8)]
    await asyncio.gather(*(leave_after_some_time(direct.session, url, body) for body in bodies))
    await all_clean(cluster, routes, watcher, record_property)


async def leave_after_some_time(session: Any, url: str, body: dict[str, Any]) -> None:
    """Whatever has come by then."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.5), session.post(url + "/generate", json=body) as answer:
            await answer.read()


@pytest.mark.parametrize("way", WAYS)
async def test_a_batch_and_several_samples(
    cluster: LocalCluster,
    routes: Any,
    watcher: Any,
    direct: Any,
    prompt_ids: Any,
    record_property: Any,
    way: str,
) -> None:
    batch = body_of([prompt_ids(100, seed=40), prompt_ids(150, seed=41)], True)
    samples = body_of(prompt_ids(120, seed=42), True)
    samples["sampling_params"]["n"] = 2
    url = routes.of(way).url
    await asyncio.gather(*(leave_mid_stream(direct.session, url, body) for body in (batch, samples)))
    await all_clean(cluster, routes, watcher, record_property)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("way", WAYS)
async def test_openai_streams(
    cluster: LocalCluster,
    routes: Any,
    watcher: Any,
    direct: Any,
    record_property: Any,
    way: str,
    path: str,
) -> None:
    prompt = {"prompt": "x" * 100} if path == "/v1/completions" else {}
    messages = {} if prompt else {"messages": [{"role": "user", "content": "x" * 100}]}
    body = {"model": "kvferry-tiny", "stream": True, "max_tokens": MANY_TOKENS, "ignore_eos": True}
    await leave_mid_stream(
        direct.session,
        routes.of(way).url,
        body | prompt | messages,
        path,
        until=lambda: running(cluster, watcher),
    )
    await all_clean(cluster, routes, watcher, record_property)
