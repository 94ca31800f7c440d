"""What cannot be served gets one clear error in OpenAI's shape, and no prompt is written anywhere."""

import json
from typing import Any

import openai
import pytest

from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.ports import free_ports

MODEL = "kvferry-tiny"
LONGER_THAN_CONTEXT = 9000
MARK = "MARKER-OF-A-SECRET-PROMPT"
MESSAGES = [{"role": "user", "content": "Which way?"}]


async def answer_of(session: Any, url: str, path: str, **more: Any) -> tuple[int, Any]:
    async with session.request(more.pop("method", "POST"), url + path, **more) as answer:
        raw = await answer.read()
        assert answer.content_type == "application/json", raw[:300]
        return answer.status, json.loads(raw)


BAD: dict[str, tuple[int, str, dict[str, Any]]] = {
    "unknown model": (404, "/v1/completions", {"json": {"model": "other", "prompt": "a"}}),
    "unknown model, chat": (404, "/v1/chat/completions", {"json": {"model": "other", "messages": MESSAGES}}),
    "missing prompt": (400, "/v1/completions", {"json": {"model": MODEL}}),
    "missing messages": (400, "/v1/chat/completions", {"json": {"model": MODEL}}),
    "missing text": (400, "/generate", {"json": {"sampling_params": {}}}),
    "negative max_tokens": (
        400,
        "/v1/completions",
        {"json": {"model": MODEL, "prompt": "a", "max_tokens": -5}},
    ),
    "negative max_new_tokens": (
        400,
        "/generate",
        {"json": {"text": "a", "sampling_params": {"max_new_tokens": -1}}},
    ),
    "over the limit": (413, "/generate", {"json": {"text": "a" * 5_000_000}}),
    "invalid JSON": (400, "/v1/completions", {"data": b'{"model": "kvferry-tiny", "prompt": '}),
    "not an object": (400, "/generate", {"data": b"[1, 2]"}),
    "not UTF-8": (400, "/generate", {"data": b'{"text": "\xff\xfe"}'}),
    "wrong type": (400, "/generate", {"json": {"text": 5}}),
    "wrong path": (404, "/v1/nothing", {"json": {}}),
    "wrong method": (405, "/v1/completions", {"method": "GET"}),
    "longer than the context": (400, "/generate", {"json": {"input_ids": [5] * LONGER_THAN_CONTEXT}}),
    "longer than the context, completions": (
        400,
        "/v1/completions",
        {"json": {"model": MODEL, "prompt": [5] * LONGER_THAN_CONTEXT, "max_tokens": 4}},
    ),
    "longer than the context, chat": (
        400,
        "/v1/chat/completions",
        {
            "json": {
                "model": MODEL,
                "messages": [{"role": "user", "content": MARK + "a" * LONGER_THAN_CONTEXT}],
                "max_tokens": 4,
            }
        },
    ),
    "the worker's own check": (
        400,
        "/generate",
        {"json": {"text": MARK, "sampling_params": {"temperature": -2.0}}},
    ),
    "the worker's own check, completions": (
        400,
        "/v1/completions",
        {"json": {"model": MODEL, "prompt": MARK, "temperature": "warm " + MARK}},
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", ["colocated", "mooncake"])
async def test_one_clear_error(
    cluster: LocalCluster, routes: Any, direct: Any, watcher: Any, way: str, stream: bool
) -> None:
    router = routes.of(way)
    for name, (status, path, request) in BAD.items():
        request = dict(request)
        if "json" in request:
            request["json"] = request["json"] | {"stream": stream}
        got, told = await answer_of(direct.session, router.url, path, **request)
        assert got == status, f"{name}: {got} {str(told)[:500]}"
        assert told["error"]["message"], name
        assert told["error"]["type"], name
    assert "Traceback" not in router.log
    await watcher.until_idle([router], cluster.workers)


async def test_the_openai_client_raises_what_it_should(routes: Any) -> None:
    client = openai.AsyncOpenAI(base_url=routes.mooncake.url + "/v1", api_key="none", max_retries=0)
    async with client:
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.chat.completions.create(model="other", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError, match="max_tokens is -1"):
            await client.completions.create(model=MODEL, prompt="a", max_tokens=-1)
        with pytest.raises(openai.APIStatusError, match="larger than") as large:
            await client.completions.create(model=MODEL, prompt="a" * 5_000_000)
        assert large.value.status_code == 413
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model=MODEL, prompt=[5] * LONGER_THAN_CONTEXT)
        assert [model.id async for model in client.models.list()] == [MODEL]


async def test_no_worker_alive(start_router: Any, direct: Any) -> None:
    urls = [f"http://127.0.0.1:{port}" for port in free_ports(2)]
    router = start_router(urls, await_workers=False)
    for path, body in {
        "/generate": {"text": "a"},
        "/v1/completions": {"model": MODEL, "prompt": "a"},
        "/v1/chat/completions": {"model": MODEL, "messages": MESSAGES},
    }.items():
        status, told = await answer_of(direct.session, router.url, path, json=body)
        assert (status, told["error"]["type"]) == (503, "server_error")
    status, _ = await answer_of(direct.session, router.url, "/ready", method="GET")
    assert status == 503
    client = openai.AsyncOpenAI(base_url=router.url + "/v1", api_key="none", max_retries=0)
    async with client:
        with pytest.raises(openai.InternalServerError):
            await client.completions.create(model=MODEL, prompt="a")
    assert "Traceback" not in router.log


async def test_an_api_key(cluster: LocalCluster, start_router: Any, direct: Any) -> None:
    router = start_router(cluster.of("colocated"), "kvferry", "--api-key", "right")
    body = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "right"}):
        status, told = await answer_of(direct.session, router.url, "/generate", json=body, headers=headers)
        assert (status, told["error"]["code"]) == (401, "invalid_api_key")
    client = openai.AsyncOpenAI(base_url=router.url + "/v1", api_key="wrong", max_retries=0)
    async with client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    headers = {"Authorization": "Bearer right"}
    status, _ = await answer_of(direct.session, router.url, "/generate", json=body, headers=headers)
    assert status == 200
    assert "right" not in router.log


async def test_prompts_are_written_nowhere(routes: Any, direct: Any, watcher: Any) -> None:
    """Not when all is well, not when a worker's error quotes them."""
    fine = {"temperature": 0, "max_new_tokens": 2}
    bodies = [
        ("/generate", {"text": MARK, "sampling_params": fine}),
        ("/generate", {"text": MARK, "sampling_params": fine, "stream": True}),
        ("/generate", {"text": MARK, "sampling_params": {"temperature": -2.0}}),
        ("/generate", {"text": MARK, "sampling_params": fine | {"json_schema": MARK}}),
        ("/generate", {"text": [MARK], "sampling_params": fine, "image_data": {MARK: 1}}),
        ("/v1/completions", {"model": MODEL, "prompt": MARK, "max_tokens": 2}),
        ("/v1/completions", {"model": MODEL, "prompt": MARK, "temperature": MARK}),
        ("/v1/completions", {"model": MODEL, "prompt": {MARK: 1}}),
        ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": MARK}]}),
        ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": MARK, "content": MARK}]}),
        ("/v1/chat/completions", {"model": MODEL, "messages": [MARK]}),
    ]
    quoted = 0
    for router in (routes.colocated, routes.mooncake):
        for path, body in bodies:
            if path.endswith("chat/completions"):
                body = {"max_tokens": 2, **body}
            async with direct.session.post(router.url + path, json=body) as answer:
                quoted += answer.status >= 400 and MARK in await answer.text()
    assert quoted, "some worker's error quotes the prompt, or this test proves nothing"
    for router in (routes.colocated, routes.mooncake):
        assert MARK not in router.log
        assert router.records()
        assert MARK not in json.dumps(router.records())
        for file in router.folder.rglob("*"):
            assert not file.is_file() or MARK.encode() not in file.read_bytes(), file
    dump = await dump_of(watcher.store.client)
    assert len(dump) > 1000
    assert MARK.encode() not in dump


async def dump_of(client: Any) -> bytes:
    """All that is in the store."""
    parts = []
    async for key in client.scan_iter("*"):
        parts.append(key)
        kind = await client.type(key)
        if kind == b"stream":
            parts += [bytes(str(row), "utf8") for row in await client.xrange(key)]
        elif kind == b"hash":
            parts += [bytes(str(await client.hgetall(key)), "utf8")]
        elif kind == b"string":
            parts.append(await client.get(key))
    return b"\n".join(parts)
