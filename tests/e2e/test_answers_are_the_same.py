"""Through the router, a split over Mooncake or NIXL answers token for token like one worker alone."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.spec import TRANSPORTS, Transport

MODEL = "kvferry-tiny"
OUTPUT_TOKENS = 16
# 30 lengths from 16 to 4,000 tokens, evenly spaced on a log scale.
LENGTHS = tuple(round(16 * 250 ** (step / 29)) for step in range(30))
AT_ONCE = 24
ONE_TOKEN = {"temperature": 0, "extra_body": {"ignore_eos": True}}

Ask = Callable[[Any, str, list[int]], Awaitable[tuple[Any, str]]]


def text_of(ids: list[int]) -> str:
    """The text that the tiny model's tokenizer reads as `ids`."""
    return "".join(chr(33 + one) for one in ids)


def sampling(tokens: int = OUTPUT_TOKENS, **more: Any) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **more}


def events(stream: bytes) -> list[Any]:
    """The JSON of each server-sent event; the stream must have ended with [DONE]."""
    lines = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]", stream[-300:]
    return [json.loads(line) for line in lines[:-1]]


async def post(session: Any, url: str, body: dict[str, Any], path: str = "/generate") -> tuple[Any, str]:
    """(answer, plan): the JSON, or the list of events when streamed."""
    async with session.post(url + path, json=body) as answer:
        raw = await answer.read()
        assert answer.status == 200, raw[:500]
        plan = answer.headers["x-kvferry-plan"]
    return (events(raw) if body.get("stream") else json.loads(raw)), plan


async def generate(session: Any, url: str, prompt: dict[str, Any], stream: bool) -> tuple[Any, str]:
    answer, plan = await post(session, url, {**prompt, "sampling_params": sampling(), "stream": stream})
    last = answer[-1] if stream else answer
    return (last["output_ids"], last["text"]), plan


async def by_ids(session: Any, url: str, ids: list[int]) -> tuple[Any, str]:
    return await generate(session, url, {"input_ids": ids}, stream=False)


async def by_ids_streamed(session: Any, url: str, ids: list[int]) -> tuple[Any, str]:
    return await generate(session, url, {"input_ids": ids}, stream=True)


async def by_text(session: Any, url: str, ids: list[int]) -> tuple[Any, str]:
    return await generate(session, url, {"text": text_of(ids)}, stream=False)


async def by_text_streamed(session: Any, url: str, ids: list[int]) -> tuple[Any, str]:
    return await generate(session, url, {"text": text_of(ids)}, stream=True)


async def client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120)


async def chat(_: Any, url: str, ids: list[int]) -> tuple[Any, str]:
    messages = [{"role": "user", "content": text_of(ids)}]
    async with await client(url) as api:
        raw = await api.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, max_completion_tokens=OUTPUT_TOKENS, **ONE_TOKEN
        )
    answer = raw.parse()
    assert answer.usage.completion_tokens == OUTPUT_TOKENS
    return answer.choices[0].message.content, raw.headers["x-kvferry-plan"]


async def chat_streamed(_: Any, url: str, ids: list[int]) -> tuple[Any, str]:
    messages = [{"role": "user", "content": text_of(ids)}]
    async with await client(url) as api:
        stream = await api.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=OUTPUT_TOKENS, stream=True, **ONE_TOKEN
        )
        parts = [part.choices[0].delta.content or "" async for part in stream if part.choices]
    return "".join(parts), stream.response.headers["x-kvferry-plan"]


async def completion(_: Any, url: str, ids: list[int]) -> tuple[Any, str]:
    async with await client(url) as api:
        raw = await api.completions.with_raw_response.create(
            model=MODEL, prompt=ids, max_tokens=OUTPUT_TOKENS, **ONE_TOKEN
        )
    answer = raw.parse()
    assert answer.usage.completion_tokens == OUTPUT_TOKENS
    return answer.choices[0].text, raw.headers["x-kvferry-plan"]


async def completion_streamed(_: Any, url: str, ids: list[int]) -> tuple[Any, str]:
    async with await client(url) as api:
        stream = await api.completions.create(
            model=MODEL, prompt=text_of(ids), max_tokens=OUTPUT_TOKENS, stream=True, **ONE_TOKEN
        )
        parts = [part.choices[0].text async for part in stream if part.choices]
    return "".join(parts), stream.response.headers["x-kvferry-plan"]


WAYS: dict[str, Ask] = {
    ask.__name__: ask
    for ask in (
        by_ids,
        by_ids_streamed,
        by_text,
        by_text_streamed,
        chat,
        chat_streamed,
        completion,
        completion_streamed,
    )
}
_expected: dict[tuple[str, int], Any] = {}


async def expected(ask: Ask, session: Any, routes: Any, ids: list[int]) -> Any:
    """What the colocated worker answers through the router; asked once per way and prompt."""
    key = (ask.__name__, len(ids))
    if key not in _expected:
        _expected[key], plan = await ask(session, routes.colocated.url, ids)
        assert plan.startswith("colocated:")
    return _expected[key]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_one_after_the_other(
    cluster: LocalCluster, routes: Any, direct: Any, prompt_ids: Any, transport: Transport, stream: bool
) -> None:
    (single,) = cluster.of("colocated")
    ask = by_ids_streamed if stream else by_ids
    answers = set()
    for length in LENGTHS:
        ids = prompt_ids(length)
        want, text = await expected(ask, direct.session, routes, ids)
        if not stream:
            assert want == await direct.colocated(single, ids), "the router must not change an answer"
        (got, told), plan = await ask(direct.session, routes.of(transport).url, ids)
        assert plan.startswith("split:")
        assert plan.endswith(transport)
        assert (got, told) == (want, text), f"{length} tokens"
        assert len(got) == OUTPUT_TOKENS
        answers.add(tuple(got))
    assert len(answers) > len(LENGTHS) // 2, "different prompts must differ in their answers"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_24_at_once(routes: Any, direct: Any, prompt_ids: Any, transport: Transport, way: str) -> None:
    ask, gate = WAYS[way], asyncio.Semaphore(AT_ONCE)

    async def one(length: int) -> None:
        async with gate:
            got, plan = await ask(direct.session, routes.of(transport).url, prompt_ids(length))
        assert plan.startswith("split:")
        assert plan.endswith(transport)
        assert got == want[length], f"{length} tokens"

    prompts = [prompt_ids(length) for length in LENGTHS]
    answers = await asyncio.gather(*(expected(ask, direct.session, routes, ids) for ids in prompts))
    want = dict(zip(LENGTHS, answers, strict=True))
    await asyncio.gather(*(one(length) for length in LENGTHS))
