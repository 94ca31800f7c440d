"""Mooncake or NIXL for each request, on one real pair: by hand, through the router, and sabotaged."""

import asyncio
import os
import random
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.command import STUBS, missing_requirement
from kvferry.integrations.sglang.local.model import TinyModel
from kvferry.integrations.sglang.local.spec import TRANSPORTS, Transport, WorkerOptions, WorkerSpec
from kvferry.integrations.sglang.plugin.wire import RequestRecord, decode

SPECS = (WorkerSpec("colocated"), WorkerSpec("prefill", "mooncake"), WorkerSpec("decode", "mooncake"))
LENGTHS = (16, 300, 4200, 1200, 64, 700)  # 4,200 takes two chunks
HALF_PAIR_S = 20

# What the workers' transports are told to do: the words in a file, "drop nixl" or "fail mooncake".
SABOTEUR = """
import importlib, os
import numpy as np

def told(transport):
    with open(os.environ["SABOTAGE"]) as file:
        how, _, which = file.read().partition(" ")
    return how if which == transport else ""

def mooncake(original, manager, *args, **kwargs):
    how = told("mooncake")
    return {"": lambda: original(manager, *args, **kwargs), "drop": lambda: 0, "fail": lambda: -1}[how]()

def nixl(original, manager, peer, pages, pointers, to, *args, **kwargs):
    if told("nixl") == "fail":
        raise RuntimeError("told to fail")
    if told("nixl") == "drop":
        to = np.zeros_like(to)  # where nothing is ever read
    return original(manager, peer, pages, pointers, to, *args, **kwargs)

def load():
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    around, conn = registry.HookType.AROUND, "sglang.srt.disaggregation.{}.conn.{}"
    register = registry.HookRegistry.register
    register(conn.format("mooncake", "MooncakeKVManager.send_kvcache"), mooncake, around)
    register(conn.format("nixl", "NixlKVManager.send_kvcache"), nixl, around)
"""


class Pair:
    """A prefill and a decode worker with both transports, and a colocated one that knows the answers."""

    def __init__(self, cluster: LocalCluster, sabotage: Path) -> None:
        (self.single,) = cluster.of("colocated")
        (self.prefill,), (self.decode,) = cluster.of("prefill"), cluster.of("decode")
        self.both = [self.prefill, self.decode]
        self._sabotage = sabotage

    def sabotage(self, how: str, transport: str) -> None:
        self._sabotage.write_text(f"{how} {transport}")

    async def split(
        self,
        direct: Any,
        ids: list[int],
        transport: Transport,
        tokens: int = 16,
        decode: Any = None,
        room: int | None = None,
    ) -> Any:
        """The output ids, or the decode worker's error."""
        fields = {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.prefill.bootstrap_port + TRANSPORTS.index(transport),
            "bootstrap_room": random.getrandbits(62) if room is None else room,
        }
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        sent = {"input_ids": ids, "stream": False, "sampling_params": sampling, **fields}
        halves = (direct.post(worker, sent) for worker in (self.prefill, decode or self.decode))
        return (await asyncio.gather(*halves, return_exceptions=True))[1]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, store_url: str) -> Iterator[Pair]:
    missing = missing_requirement([*SPECS, WorkerSpec("prefill", "nixl")])
    if missing:
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("saboteur")
    (folder / "x-1.0.dist-info").mkdir()
    (folder / "x-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1.0\n")
    entry_points = "[sglang.srt.plugins]\nx_saboteur = x_saboteur:load\n"
    (folder / "x-1.0.dist-info" / "entry_points.txt").write_text(entry_points)
    (folder / "x_saboteur.py").write_text(textwrap.dedent(SABOTEUR))
    (folder / "sabotage").write_text("")
    env = (
        ("KVFERRY_DUAL_TRANSPORT", "1"),
        ("KVFERRY_REDIS", store_url),
        ("PYTHONPATH", os.pathsep.join((str(STUBS), str(folder)))),
        ("SABOTAGE", str(folder / "sabotage")),
        # Mooncake leaves a decode worker alone after a failed move until a probe of its own succeeds
        ("SGLANG_FAILED_SESSION_PROBE_INTERVAL_S", "0.2"),
    )
    options = WorkerOptions(
        overlap=True, bootstrap_timeout_s=HALF_PAIR_S, waiting_timeout_s=HALF_PAIR_S, env=env
    )
    logs = tmp_path_factory.mktemp("dual")
    print(f"logs of the workers: {logs}")
    with LocalCluster(SPECS, options, log_dir=logs, timeout_s=280) as running:
        yield Pair(running, folder / "sabotage")


@pytest.fixture(autouse=True)
def as_it_should_be(pair: Pair) -> Iterator[None]:
    yield
    pair.sabotage("", "")


async def told(worker: Any) -> Any:
    info = await asyncio.to_thread(worker.server_info)
    return info["internal_states"][0]["kvferry"]["features"]["dual_transport"]


async def test_both_workers_tell_what_they_have(pair: Pair) -> None:
    port = pair.prefill.bootstrap_port
    assert await told(pair.prefill) == {"on": True, "transports": {"mooncake": port, "nixl": port + 1}}
    assert await told(pair.decode) == {"on": True, "transports": {"mooncake": None, "nixl": None}}
    assert await told(pair.single) == {"on": False, "why": "this worker moves no KV"}


async def test_one_after_the_other_and_at_once_every_answer_is_right(
    pair: Pair, direct: Any, prompt_ids: Any
) -> None:
    # each comes twice in a row and twice at once: all but the first from the prefill worker's prefix cache
    prompts = [prompt_ids(length, seed=length) for length in (*LENGTHS, *LENGTHS)]
    expected = [await direct.colocated(pair.single, ids) for ids in prompts]
    assert len({tuple(output) for output in expected}) > 3, "different prompts must differ in their answers"
    ways: list[Transport] = [TRANSPORTS[(place + place // 6) % 2] for place in range(len(prompts))]
    for ids, way, output in zip(prompts, ways, expected, strict=True):
        assert await pair.split(direct, ids, way) == output, (len(ids), way)
    ways.reverse()
    at_once = [pair.split(direct, ids, way) for ids, way in zip(prompts, ways, strict=True)]
    assert await asyncio.gather(*at_once) == expected


async def moved(watcher: Any, rooms: dict[int, int]) -> dict[str, int]:
    """Bytes by transport, as the calls into its library counted them, of the requests with these rooms."""
    found: dict[int, Any] = {}
    for _ in range(100):
        for _, fields in await watcher.store.client.xrange(watcher.store.keys.telemetry):
            record = decode(fields[b"data"])
            if isinstance(record, RequestRecord) and record.room in rooms and record.transfer is not None:
                found[record.room] = record.transfer
        if len(found) == len(rooms):
            break
        await asyncio.sleep(0.1)
    sums = dict.fromkeys(TRANSPORTS, 0)
    for transfer in found.values():
        sums[transfer.transport] += transfer.bytes
    return sums


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_all_bytes_go_over_the_transport_that_was_chosen(
    pair: Pair, direct: Any, prompt_ids: Any, watcher: Any, transport: Transport
) -> None:
    rooms = {random.getrandbits(62): length for length in (33, 512, 2000)}
    for room, length in rooms.items():
        output = await pair.split(direct, prompt_ids(length, seed=f"b{transport}"), transport, room=room)
        assert isinstance(output, list), output
    shape = TinyModel()
    per_token = shape.layers * 2 * shape.kv_heads * shape.head_dim * 4
    expected = {**dict.fromkeys(TRANSPORTS, 0), transport: per_token * sum(rooms.values())}
    assert await moved(watcher, rooms) == expected


@pytest.mark.parametrize("how", ["drop", "fail"])
@pytest.mark.parametrize("broken", TRANSPORTS)
async def test_what_breaks_one_transport_breaks_its_requests_and_no_others(
    pair: Pair, direct: Any, prompt_ids: Any, broken: Transport, how: str
) -> None:
    prompts = [prompt_ids(length, seed=f"{how}{broken}") for length in (100, 400)]
    expected = [await direct.colocated(pair.single, ids) for ids in prompts]
    pair.sabotage(how, broken)
    for transport in TRANSPORTS:
        got = await asyncio.gather(*(pair.split(direct, ids, transport) for ids in prompts))
        wrong = [one != output for one, output in zip(got, expected, strict=True)]
        assert wrong == [transport == broken] * len(prompts), (transport, got)
    pair.sabotage("", "")
    for _ in range(50):
        if await pair.split(direct, prompts[0], broken) == expected[0]:
            break
        await asyncio.sleep(0.2)
    assert await asyncio.gather(*(pair.split(direct, ids, broken) for ids in prompts)) == expected


async def test_a_decode_worker_without_the_plugin_does_no_harm_on_the_wrong_port(
    pair: Pair, direct: Any, prompt_ids: Any
) -> None:
    ids = prompt_ids(400, seed="plain")
    expected = await direct.colocated(pair.single, ids)
    with LocalCluster([WorkerSpec("decode", "mooncake")], WorkerOptions()) as plain:
        (stock,) = plain.workers
        assert await pair.split(direct, ids, "mooncake", decode=stock) == expected
        error = await pair.split(direct, ids, "nixl", decode=stock)
        assert isinstance(error, AssertionError)
        assert "answered 500" in str(error)
        assert await pair.split(direct, ids, "mooncake", decode=stock) == expected
    for transport in TRANSPORTS:
        assert await pair.split(direct, ids, transport) == expected, f"{transport} after it"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_requests_that_are_aborted_leave_nothing_behind(
    pair: Pair, direct: Any, prompt_ids: Any, watcher: Any, transport: Transport
) -> None:
    asked = [
        asyncio.create_task(pair.split(direct, prompt_ids(300, seed=f"{transport}{place}"), transport, 3000))
        for place in range(6)
    ]
    for delay_s in (0.0, 0.1, 0.5):
        await asyncio.sleep(delay_s)
        for task in asked[:2]:
            task.cancel()
        asked = asked[2:]
    await watcher.until_idle([], pair.both, within_s=20.0)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_half_that_was_killed_returns_with_both_transports(
    pair: Pair, direct: Any, prompt_ids: Any, role: str
) -> None:
    ids = prompt_ids(500, seed=role)
    expected = await direct.colocated(pair.single, ids)
    victim = getattr(pair, role)
    victim.kill()
    await asyncio.to_thread(victim.restart)
    for transport in TRANSPORTS:
        assert await pair.split(direct, ids, transport) == expected, transport


async def ask(session: aiohttp.ClientSession, router: Any, ids: list[int]) -> tuple[list[int], str]:
    sampling = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
    body = {"input_ids": ids, "sampling_params": sampling}
    async with session.post(router.url + "/generate", json=body) as answer:
        told = await answer.json()
        assert answer.status == 200, told
        return told["output_ids"], answer.headers["x-kvferry-plan"]


SLOW = """
[[path]]
name = "slow"
kind = "tcp"
scope = "node"
beta_gb_s = 0.01
beta_low_gb_s = 0.01
beta_high_gb_s = 0.01
alpha_us = 900000
gamma_us = 0
handoff_ms = 10
first_contact_ms = 0
confidence = "none"
source = "made up"
"""


@pytest.mark.parametrize("broken", TRANSPORTS)
async def test_the_router_leaves_a_broken_transport_alone_and_comes_back_to_it(
    pair: Pair,
    direct: Any,
    prompt_ids: Any,
    start_router: Any,
    watcher: Any,
    tmp_path: Path,
    broken: Transport,
) -> None:
    """The router is made to prefer the one that breaks."""
    other = next(one for one in TRANSPORTS if one != broken)
    classes = (f"{broken}=shared_memory_cma", f"{other}=slow")
    config = tmp_path / "slow.toml"
    config.write_text(SLOW)
    words = ["--config", str(config), *(word for one in classes for word in ("--path-class", one))]
    router = start_router(pair.both, "kvferry", *words)
    keys = {one: f"split:{pair.prefill.url}>{pair.decode.url}@{one}" for one in TRANSPORTS}
    prompts = [prompt_ids(200, seed=f"{broken}{place}") for place in range(9)]
    expected = [await direct.colocated(pair.single, ids) for ids in prompts]
    shown = await watcher.get(router.url + "/kvferry/workers")
    (source,) = [row for row in shown["workers"] if row["role"] == "prefill"]
    port = pair.prefill.bootstrap_port
    assert source["transports"] == list(TRANSPORTS)
    assert source["bootstrap_ports"] == {"mooncake": port, "nixl": port + 1}
    links = await watcher.get(router.url + "/kvferry/links")
    assert {link["transport"] for link in links["links"]} == set(TRANSPORTS)

    assert await ask(direct.session, router, prompts[0]) == (expected[0], keys[broken])
    pair.sabotage("fail", broken)
    answers = [await ask(direct.session, router, ids) for ids in prompts[1:7]]
    assert answers == [(output, keys[other]) for output in expected[1:7]], "each is served over the other one"
    rescued = [record for record in router.records() if record["outcome"]["rescued_from"]]
    assert 1 <= len(rescued) < 6, "most did not even try"
    assert all(record["outcome"]["rescued_from"] == [keys[broken]] for record in rescued)
    # its pause may be over by now, on a slow machine
    assert set((await watcher.get(router.url + "/kvferry/links"))["open_breakers"]) <= {keys[broken]}

    pair.sabotage("", "")
    for _ in range(100):
        output, plan = await ask(direct.session, router, prompts[7])
        assert output == expected[7]
        if plan == keys[broken]:
            break
        await asyncio.sleep(0.2)
    else:
        pytest.fail(f"{broken} was not tried again")
    assert not (await watcher.get(router.url + "/kvferry/links"))["open_breakers"]
