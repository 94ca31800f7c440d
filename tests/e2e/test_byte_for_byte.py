"""What the client gets is what the worker sent, byte for byte: recorded on the wire between the two."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from kvferry.integrations.sglang.local.cluster import LocalCluster

MODEL = {"model": "kvferry-tiny", "temperature": 0, "max_tokens": 8}
BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "as it came", "sampling_params": {"temperature": 0, "max_new_tokens": 8}},
    "/v1/chat/completions": MODEL | {"messages": [{"role": "user", "content": "as it came \u2713"}]},
    "/v1/completions": MODEL | {"prompt": "as it came"},
}


class Recorder:
    """A reverse proxy in front of a worker that keeps the last answer to a POST."""

    def __init__(self, worker_url: str, session: aiohttp.ClientSession) -> None:
        self.worker_url, self.session = worker_url, session
        self.sent = self.received = b""
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        url = self.worker_url + request.path_qs
        async with self.session.request(request.method, url, data=body, headers=request.headers) as answer:
            headers = {"Content-Type": answer.headers.get("Content-Type", "text/plain")}
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(request)
            sent = b""
            async for chunk in answer.content.iter_any():
                sent += chunk
                await response.write(chunk)
            if request.method == "POST" and request.path in BODIES:
                self.sent, self.received = sent, body
            await response.write_eof()
            return response


@pytest.fixture
async def recorder(cluster: LocalCluster) -> AsyncIterator[Recorder]:
    """In front of the decode worker of the Mooncake pair."""
    (decode,) = cluster.of("decode", "mooncake")
    app = web.Application()
    runner = web.AppRunner(app)
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        recorder = Recorder(decode.url, session)
        app.router.add_route("*", "/{path:.*}", recorder.handle)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        recorder.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield recorder
        await runner.cleanup()


async def test_bytes_pass_unchanged(
    cluster: LocalCluster, start_router: Any, recorder: Recorder, direct: Any
) -> None:
    (prefill,) = cluster.of("prefill", "mooncake")
    router = await asyncio.to_thread(start_router, [prefill, recorder.url], "always_split")
    for path, body in BODIES.items():
        for stream in (True, False):
            async with direct.session.post(router.url + path, json=body | {"stream": stream}) as answer:
                got = await answer.read()
            assert answer.status == 200, got
            assert got == recorder.sent
            assert got.endswith(b"data: [DONE]\n\n") == stream
            assert b"kvferry-tiny" in recorder.received or path == "/generate"


async def test_a_body_passes_with_fields_added_at_its_end_only(
    cluster: LocalCluster, start_router: Any, recorder: Recorder, direct: Any
) -> None:
    (prefill,) = cluster.of("prefill", "mooncake")
    router = await asyncio.to_thread(start_router, [prefill, recorder.url], "always_split")
    raw = b'{ "text" : "odd  spacing \\u00e9", "unknown":{"kept":[1,2.50]},'
    raw += b'"sampling_params":{"max_new_tokens":1}'
    async with direct.session.post(router.url + "/generate", data=raw + b" } ") as answer:
        assert answer.status == 200, await answer.read()
    assert recorder.received.startswith(raw + b',"rid":')
    assert b'"bootstrap_room":' in recorder.received
