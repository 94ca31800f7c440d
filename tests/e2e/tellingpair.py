"""A pair whose telemetry goes to a store that can be killed, and who drives them, as seen from the client."""

import asyncio
import contextlib
import random
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import redis

from kvferry.integrations.redis.embedded import server_binary
from kvferry.integrations.redis.keys import Keys
from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.spec import Transport
from kvferry.integrations.sglang.local.worker import LocalWorker
from kvferry.integrations.sglang.plugin.wire import Record, RequestRecord, decode


class Store:
    """A Valkey that can be killed and started again under its URL, empty."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvferry-test-")
        self._socket = Path(self._folder.name) / "s"
        self.url = f"unix://{self._socket}"
        self._process: subprocess.Popen[bytes] | None = None
        self._client = redis.Redis(unix_socket_path=str(self._socket), socket_timeout=5.0)

    def start(self) -> None:
        self._socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [str(server_binary()), "--port", "0", "--unixsocket", str(self._socket), "--save", "",
             "--dir", self._folder.name],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(redis.RedisError, OSError):
                self._client.ping()
                return
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        self._folder.cleanup()

    def records(self) -> list[Record]:
        return [decode(fields[b"data"]) for _, fields in self._client.xrange(Keys().telemetry)]

    def requests(self) -> dict[tuple[str, str], RequestRecord]:
        """By request id and role."""
        return {(r.rid, r.role): r for r in self.records() if isinstance(r, RequestRecord)}

    def told(self, instance: str) -> bytes | None:
        found: bytes | None = self._client.get(Keys().told(instance))
        return found


@dataclass(frozen=True, slots=True)
class Answer:
    """One leg as its client saw it."""

    seconds: float
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """The workers of a test, and who drives them."""

    cluster: LocalCluster
    store: Store
    session: aiohttp.ClientSession
    transport: Transport
    page_size: int
    retracts: bool

    @property
    def prefill(self) -> LocalWorker:
        return self.cluster.of("prefill")[0]

    @property
    def decode(self) -> LocalWorker:
        return self.cluster.of("decode")[0]

    async def leg(self, worker: LocalWorker, request: dict[str, Any]) -> Answer:
        began = time.perf_counter()
        async with self.session.post(worker.url + "/generate", json=request) as answer:
            assert answer.status == 200, await answer.text()
            body = await answer.json()
        return Answer(time.perf_counter() - began, body)

    def body(self, ids: list[int], tokens: int, rid: str) -> dict[str, Any]:
        return {
            "input_ids": ids,
            "rid": rid,
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
            "bootstrap_host": self.prefill.options.host,
            "bootstrap_port": self.prefill.bootstrap_port,
            "bootstrap_room": random.getrandbits(62),
        }

    async def split(self, ids: list[int], tokens: int, rid: str) -> tuple[Answer, Answer]:
        body = self.body(ids, tokens, rid)
        legs = await asyncio.gather(self.leg(self.prefill, body), self.leg(self.decode, body))
        return legs[0], legs[1]

    async def plugin(self, worker: LocalWorker) -> dict[str, Any]:
        async with self.session.get(worker.url + "/server_info") as answer:
            told: dict[str, Any] = (await answer.json())["internal_states"][0]["kvferry"]
        return told

    async def abort(self, rid: str, *workers: LocalWorker) -> None:
        for worker in workers:
            async with self.session.post(worker.url + "/abort_request", json={"rid": rid}) as answer:
                assert answer.status == 200
