"""Prefix hits predicted from what real workers publish, against the cached tokens that they report."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.command import missing_requirement
from kvferry.integrations.sglang.local.ports import free_ports
from kvferry.integrations.sglang.local.spec import WorkerOptions, WorkerSpec

ROOM_TOKENS = 1536
LONGEST = 500
REQUESTS = 70
WITHIN = 0.95

Ids = list[int]


def flags(page: int, ports: list[int], *more: str) -> tuple[str, ...]:
    """KV events on ports of the worker's own, and so little room that it must evict."""
    config = {
        "publisher": "zmq",
        "endpoint": f"tcp://*:{ports.pop()}",
        "replay_endpoint": f"tcp://*:{ports.pop()}",
        "topic": "kv",
    }
    room = ("--page-size", str(page), "--max-total-tokens", str(ROOM_TOKENS))
    return ("--kv-events-config", json.dumps(config), *room, *more)


@pytest.fixture(scope="module")
def tellers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A colocated worker with pages of one token and a pair with pages of 16; all tell of their KV."""
    ports = free_ports(6)
    specs = (
        WorkerSpec("colocated", extra_args=flags(1, ports)),
        WorkerSpec("prefill", "mooncake", flags(16, ports)),
        WorkerSpec("decode", "mooncake", flags(16, ports, "--disaggregation-decode-enable-radix-cache")),
    )
    missing = missing_requirement(list(specs))
    if missing:
        pytest.skip(missing)
    logs: Path = tmp_path_factory.mktemp("tellers")
    with LocalCluster(specs, WorkerOptions(), log_dir=logs, timeout_s=280) as running:
        yield running


def conversations(seed: int) -> Iterator[Ids]:
    """Prompts that begin alike: a few systems' instructions, questions about them, and rounds that go on."""
    rng = random.Random(seed)

    def words(low: int, high: int) -> Ids:
        return rng.choices(range(94), k=rng.randint(low, high))

    systems = [words(30, 250) for _ in range(5)]
    going = [list(system) for system in systems]
    while True:
        place = rng.randrange(len(systems))
        if rng.random() < 0.4 or len(going[place]) > LONGEST - 80:
            going[place] = systems[place][: rng.randint(20, 250)]
        going[place] = going[place] + words(1, 80)
        yield going[place]


async def send(url: str, ids: Ids) -> Ids:
    body = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}}
    async with aiohttp.ClientSession() as session, session.post(url + "/generate", json=body) as answer:
        assert answer.status == 200, await answer.text()
        output: Ids = json.loads(await answer.text())["output_ids"]
        return output


async def prefixes(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(url + "/kvferry/workers") as answer:
        return {row["id"]: row["prefix"] for row in json.loads(await answer.text())["workers"]}


@pytest.mark.parametrize(
    ("policy", "role", "page"), [("always_colocated", "colocated", 1), ("always_split", "prefill", 16)]
)
async def test_predicted_hits_are_the_reported_ones(
    tellers: LocalCluster, start_router: Any, policy: str, role: str, page: int
) -> None:
    workers = tellers.workers[:1] if role == "colocated" else tellers.workers[1:]
    router = start_router(workers, policy)
    prompts = conversations(page)
    for number in range(REQUESTS):
        ids = next(prompts)
        output = await send(router.url, ids)
        if number % 3 == 0:
            ids += output  # the next round of this conversation goes on from the answer
    told = await prefixes(router.url)
    router.stop()
    records = router.records()
    assert len(records) == REQUESTS
    both = [(r["request"]["cached_tokens"], r["outcome"]["cached_tokens"]) for r in records]
    # on a busy machine telemetry may come too late for its record, which then says that it does not know
    pairs = [(predicted, reported) for predicted, reported in both if reported is not None]
    assert len(pairs) >= 0.95 * REQUESTS
    within = sum(abs(predicted - reported) <= page for predicted, reported in pairs) / len(pairs)
    exact = sum(predicted == reported for predicted, reported in pairs) / len(pairs)
    print(
        f"\nKV events, {role} worker, pages of {page}: {within:.1%} of {len(pairs)} hits within a page, "
        f"{exact:.1%} exact; {sum(reported for _, reported in pairs)} tokens hit; off: "
        f"{[pair for pair in pairs if pair[0] != pair[1]]}"
    )
    for worker in workers:
        assert told[worker.url]["kind"] == "events"
        assert told[worker.url]["partial"] == ""
        assert told[worker.url]["blocks"] * page <= ROOM_TOKENS
        print(worker.name, told[worker.url])
    assert within >= WITHIN
    assert sum(reported > page for _, reported in pairs) > REQUESTS / 3
