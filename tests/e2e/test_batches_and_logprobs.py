"""Batches, samples, log-probabilities and raw bytes: a split answers as one worker alone does."""

import json
from typing import Any

import pytest

from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.spec import TRANSPORTS, Transport

MODEL = "kvferry-tiny"
OUTPUT_TOKENS = 8
PROMPT_KEYS = ("input_token_logprobs", "input_top_logprobs", "output_token_logprobs", "output_top_logprobs")


def sampling(**more: Any) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": OUTPUT_TOKENS, "ignore_eos": True, **more}


def text_of(ids: list[int]) -> str:
    return "".join(chr(33 + one) for one in ids)


async def raw(session: Any, url: str, body: dict[str, Any], path: str = "/generate") -> tuple[bytes, str]:
    async with session.post(url + path, json=body) as answer:
        data = await answer.read()
        assert answer.status == 200, data[:500]
        return data, answer.headers.get("x-kvferry-plan", "")


async def split_and_single(
    session: Any, routes: Any, transport: str, body: dict[str, Any], path: str = "/generate"
) -> tuple[bytes, bytes]:
    """The two answers, each proven to have come the way it should."""
    single, plan = await raw(session, routes.colocated.url, body, path)
    assert plan.startswith("colocated:")
    split, plan = await raw(session, routes.of(transport).url, body, path)
    assert plan.startswith("split:")
    return split, single


def events(stream: bytes) -> list[Any]:
    lines = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: ")]
    assert lines.pop() == b"[DONE]"
    return [json.loads(line) for line in lines]


def last_by_index(stream: bytes) -> list[Any]:
    last = {event.get("index", 0): event for event in events(stream)}
    return [last[index] for index in sorted(last)]


def joined(stream: bytes) -> list[Any]:
    """The choices of a stream of completions, each put together from its events."""
    found: dict[int, Any] = {}
    for choice in (choice for event in events(stream) for choice in event["choices"]):
        whole = found.setdefault(choice["index"], {"text": "", "logprobs": {}})
        whole["text"] += choice["text"]
        for key, values in (choice["logprobs"] or {}).items():
            whole["logprobs"].setdefault(key, []).extend(values)
    return [found[index] for index in sorted(found)]


def close(got: Any, want: Any) -> bool:
    """Equal, numbers to 1e-4."""
    if isinstance(got, float) and isinstance(want, float):
        return abs(got - want) <= 1e-4
    if isinstance(got, list) and isinstance(want, list):
        return len(got) == len(want) and all(map(close, got, want))
    if isinstance(got, dict) and isinstance(want, dict):
        return got.keys() == want.keys() and all(close(got[key], want[key]) for key in got)
    return bool(got == want)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_batches(routes: Any, direct: Any, prompt_ids: Any, transport: Transport, stream: bool) -> None:
    prompts = [prompt_ids(length, seed=3) for length in (16, 700, 90, 1500)]
    bodies = [{"input_ids": prompts}, {"text": [text_of(ids) for ids in prompts]}]
    for body in bodies:
        body |= {"sampling_params": sampling(), "stream": stream}
        answers = await split_and_single(direct.session, routes, transport, body)
        split, single = (last_by_index(raw) if stream else json.loads(raw) for raw in answers)
        assert len(split) == len(prompts)
        assert [one["output_ids"] for one in split] == [one["output_ids"] for one in single]
        for one, ids in zip(split, prompts, strict=True):
            assert one["meta_info"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_completions_of_a_list_of_prompts(
    routes: Any, direct: Any, prompt_ids: Any, transport: Transport
) -> None:
    prompts = [text_of(prompt_ids(length, seed=4)) for length in (16, 300, 90)]
    body = {"model": MODEL, "prompt": prompts, "max_tokens": OUTPUT_TOKENS, "temperature": 0}
    answers = await split_and_single(direct.session, routes, transport, body, "/v1/completions")
    split, single = (json.loads(raw)["choices"] for raw in answers)
    assert [choice["text"] for choice in split] == [choice["text"] for choice in single]
    assert [choice["index"] for choice in split] == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_several_samples(
    routes: Any, direct: Any, prompt_ids: Any, transport: Transport, batched: bool, stream: bool
) -> None:
    ids = prompt_ids(200, seed=5)
    prompt = [ids, prompt_ids(60, seed=6)] if batched else ids
    body = {"input_ids": prompt, "sampling_params": sampling(n=3), "stream": stream}
    answers = await split_and_single(direct.session, routes, transport, body)
    split, single = (last_by_index(raw) if stream else json.loads(raw) for raw in answers)
    assert len(split) == (6 if batched else 3)
    assert [one["output_ids"] for one in split] == [one["output_ids"] for one in single]


async def test_several_samples_of_a_chat_need_one_worker(routes: Any, direct: Any) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Which way?"}],
        "max_tokens": 4,
        "temperature": 0,
        "n": 3,
    }
    answer, plan = await raw(direct.session, routes.mooncake.url, body, "/v1/chat/completions")
    assert plan.startswith("colocated:")
    texts = [choice["message"]["content"] for choice in json.loads(answer)["choices"]]
    assert len(texts) == 3
    assert len(set(texts)) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_log_probabilities(
    routes: Any, direct: Any, prompt_ids: Any, transport: Transport, batched: bool, stream: bool
) -> None:
    ids = prompt_ids(120, seed=7)
    body = {
        "input_ids": [ids, prompt_ids(33, seed=8)] if batched else ids,
        "sampling_params": sampling(),
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "stream": stream,
    }
    answers = await split_and_single(direct.session, routes, transport, body)
    if stream:
        split, single = map(last_by_index, answers)
        for event in events(answers[0]):
            assert event["meta_info"]["input_token_logprobs"], "every event tells them"
    else:
        split, single = (one if isinstance(one, list) else [one] for one in map(json.loads, answers))
    assert len(split) == len(single)
    for one, other in zip(split, single, strict=True):
        assert one["output_ids"] == other["output_ids"]
        for key in PROMPT_KEYS:
            assert close(one["meta_info"][key], other["meta_info"][key]), key
        assert len(one["meta_info"]["input_token_logprobs"]) in (120, 33)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_echoed_completions_with_log_probabilities(
    routes: Any, direct: Any, transport: Transport, batched: bool, stream: bool
) -> None:
    body = {
        "model": MODEL,
        "prompt": ["the first of two", "and the second"] if batched else "the only one",
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "echo": True,
        "logprobs": 2,
        "stream": stream,
    }
    answers = await split_and_single(direct.session, routes, transport, body, "/v1/completions")
    if stream:
        split, single = map(joined, answers)
    else:
        split, single = (json.loads(raw)["choices"] for raw in answers)
    assert close(split, single)
    assert split[0]["logprobs"]["tokens"][:4] == list("the ")


async def test_the_workers_headers_arrive(cluster: LocalCluster, routes: Any, direct: Any) -> None:
    body = {"input_ids": [1, 2, 3], "sampling_params": sampling()}
    (single,) = cluster.of("colocated")
    async with direct.session.post(single.url + "/generate", json=body) as answer:
        await answer.read()
        theirs = {name.lower() for name in answer.headers} - {"date", "server", "content-length"}
    async with direct.session.post(routes.colocated.url + "/generate", json=body) as answer:
        await answer.read()
        ours = {name.lower() for name in answer.headers}
    assert theirs <= ours
    assert {"x-kvferry-id", "x-kvferry-plan"} <= ours
