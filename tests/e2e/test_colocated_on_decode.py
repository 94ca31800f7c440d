"""Requests that a decode worker prefills by itself, beside split ones, in both of SGLang's event loops."""

import asyncio
import importlib.util
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.command import STUBS
from kvferry.integrations.sglang.local.spec import WorkerOptions, WorkerSpec
from kvferry.integrations.sglang.local.worker import LocalWorker
from kvferry.integrations.sglang.plugin.wire import LOCAL_MARK

_spec = importlib.util.spec_from_file_location("decodeworker", Path(__file__).parent / "decodeworker.py")
assert _spec is not None
assert _spec.loader is not None
decodeworker = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = decodeworker  # tests are no package: a helper beside them is loaded by its path
_spec.loader.exec_module(decodeworker)
Decode, body = decodeworker.Decode, decodeworker.body

PromptIds = Callable[..., list[int]]
LOOPS = ("overlapped", "normal")  # the second also caches prefixes


@pytest.fixture(scope="module")
def switches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return decodeworker.write_probe(tmp_path_factory.mktemp("probe"))


@pytest.fixture(scope="module")
def decodes(cluster: LocalCluster, switches: Path, log_dir: Path) -> Iterator[dict[str, LocalWorker]]:
    """A decode worker per event loop, for the session's prefill worker over Mooncake."""
    specs = (
        WorkerSpec("decode", "mooncake"),
        WorkerSpec(
            "decode",
            "mooncake",
            ("--disable-overlap-schedule", "--disaggregation-decode-enable-radix-cache"),
        ),
    )
    env = (("KVFERRY_LOCAL_PREFILL", "1"), ("PYTHONPATH", f"{STUBS}:{switches}"))
    folder = log_dir / "colocated-on-decode"
    with LocalCluster(specs, WorkerOptions(overlap=True, env=env), log_dir=folder, timeout_s=280) as started:
        yield dict(zip(LOOPS, started.workers, strict=True))


@pytest.fixture(params=LOOPS)
async def decode(
    request: pytest.FixtureRequest, cluster: LocalCluster, decodes: dict[str, LocalWorker], switches: Path
) -> AsyncIterator[Decode]:
    timeout = aiohttp.ClientTimeout(total=200)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield Decode(
            session,
            decodes[request.param],
            cluster.of("prefill", "mooncake")[0],
            cluster.of("colocated")[0],
            switches,
            request.param == "normal",
        )


async def test_only_a_marked_request_is_prefilled_here(decode: Decode, prompt_ids: PromptIds) -> None:
    ids = prompt_ids(40)
    expected = await decode.expected(ids, 8)
    status, answer = await decode.post(decode.worker, body(ids, 8))
    assert status == 400
    assert "without bootstrap room id" in answer["error"]["message"]
    assert (await decode.local(ids, 8))["output_ids"] == expected["output_ids"]
    by_host = await decode.ok(decode.worker, body(ids, 8, bootstrap_host=LOCAL_MARK))
    assert by_host["output_ids"] == expected["output_ids"]
    accepted = (await decode.local_prefill())["accepted"]
    assert (await decode.split(ids, 8, **{LOCAL_MARK: True}))["output_ids"] == expected["output_ids"]
    assert (await decode.local_prefill())["accepted"] == accepted
    status, answer = await decode.post(
        decode.worker, body(ids, 8, session_params={"id": "x"}) | {LOCAL_MARK: True}
    )
    assert status == 400
    assert answer["error"]["message"] == "local prefill does not do sessions"


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/completions", {"prompt": "hello"}),
    ],
)
async def test_openai_endpoints_take_the_mark(decode: Decode, path: str, prompt: dict[str, Any]) -> None:
    sent = {"model": "kvferry-tiny", "max_tokens": 6, "temperature": 0, "n": 2} | prompt
    expected = await decode.ok(decode.reference, sent, path)
    answer = await decode.ok(decode.worker, sent | {LOCAL_MARK: True}, path)
    assert answer["choices"] == expected["choices"]
    assert (await decode.post(decode.worker, sent, path))[0] == 400


async def mixed(
    decode: Decode, prompt_ids: PromptIds, count: int, longest: int, tokens: range, late_s: float = 0.0
) -> list[int]:
    """Local and split requests, alternating, all token-identical to the colocated worker; returns how often
    each local one was retracted. `late_s`: local ones begin so much later."""
    draw = random.Random(f"{count}/{longest}")
    prompts = [prompt_ids(draw.randint(16, longest), seed) for seed in range(count)]
    lengths = [draw.choice(tokens) for _ in prompts]
    expected = [
        (await decode.expected(ids, length))["output_ids"]
        for ids, length in zip(prompts, lengths, strict=True)
    ]

    async def one(number: int) -> dict[str, Any]:
        await asyncio.sleep(0.05 * number + (0.0 if number % 2 else late_s))
        run = decode.split if number % 2 else decode.local
        return await run(prompts[number], lengths[number])

    answers = await asyncio.gather(*(one(number) for number in range(count)))
    assert [answer["output_ids"] for answer in answers] == expected
    await decode.comes_to_rest()
    return [answer["meta_info"]["num_retractions"] for answer in answers[::2]]


async def test_local_and_split_together_say_the_same(decode: Decode, prompt_ids: PromptIds) -> None:
    before = await decode.local_prefill()
    await mixed(decode, prompt_ids, 16, 900, range(2, 25))
    after = await decode.local_prefill()
    assert after["accepted"] == before["accepted"] + 8
    assert after["stalls"] > before["stalls"]
    assert after["stalled_tokens"] > before["stalled_tokens"]
    assert after["stall_s"] > before["stall_s"]


async def test_forced_retraction_changes_nothing(decode: Decode, prompt_ids: PromptIds) -> None:
    decode.switch("retract", on=True)
    try:
        # SGLang retracts who has written least
        retractions = await mixed(decode, prompt_ids, 8, 200, range(40, 60), late_s=0.8)
    finally:
        decode.switch("retract", on=False)
    assert sum(retractions) > 0


async def test_an_abort_in_any_phase_leaves_nothing(decode: Decode, prompt_ids: PromptIds) -> None:
    async def leave(ids: list[int], tokens: int, events: int, after_s: float) -> None:
        """Read so many events, or wait so long, and go."""
        sent = body(ids, tokens, stream=True) | {LOCAL_MARK: True}

        async def read() -> None:
            async with decode.session.post(decode.worker.url + "/generate", json=sent) as answer:
                seen = 0
                async for line in answer.content:
                    seen += line.startswith(b"data:")
                    if events and seen >= events:
                        return

        with pytest.raises(TimeoutError) if not events else nullcontext():
            await asyncio.wait_for(read(), after_s)

    await leave(prompt_ids(60), 2000, 5, 60.0)  # running
    await decode.comes_to_rest()
    # the first in its chunks, the others in the queue
    await asyncio.gather(*(leave(prompt_ids(3500, n), 50, 0, 0.2 + 0.1 * n) for n in range(4)))
    await decode.comes_to_rest()

    async def told(rid: str, after_s: float) -> tuple[int, Any]:
        sent = body(prompt_ids(3500), 50, rid=rid) | {LOCAL_MARK: True}
        answer = asyncio.create_task(decode.post(decode.worker, sent))
        await asyncio.sleep(after_s)
        async with decode.session.post(decode.worker.url + "/abort_request", json={"rid": rid}):
            pass
        return await answer

    for status, answer in await asyncio.gather(told("first", 0.3), told("second", 0.15)):
        assert status != 200 or answer["meta_info"]["finish_reason"]["type"] == "abort"
    await decode.comes_to_rest()
    assert (await decode.local_prefill())["aborted"] > 0


async def test_logprobs_grammar_and_samples_are_as_on_a_colocated_worker(
    decode: Decode, prompt_ids: PromptIds
) -> None:
    ids, asked = prompt_ids(300), {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    expected, answer = await decode.expected(ids, 6, **asked), await decode.local(ids, 6, **asked)
    for key in ("input_token_logprobs", "output_token_logprobs"):
        told, right = answer["meta_info"][key], expected["meta_info"][key]
        assert [entry[1] for entry in told] == [entry[1] for entry in right]
        assert [entry[0] for entry in told[1:]] == pytest.approx([entry[0] for entry in right[1:]], abs=1e-3)
    assert len(answer["meta_info"]["input_top_logprobs"]) == len(ids)

    numbers = {"text": "number:", "sampling_params": {"temperature": 0, "regex": "[0-9]{5}"}}
    answer = await decode.ok(decode.worker, numbers | {LOCAL_MARK: True})
    assert answer["text"] == (await decode.ok(decode.reference, numbers))["text"]
    assert answer["text"].isdigit()

    sent = body(prompt_ids(50), 5)
    sent["sampling_params"]["n"] = 3
    samples = await decode.ok(decode.worker, sent | {LOCAL_MARK: True})
    one = (await decode.expected(prompt_ids(50), 5))["output_ids"]
    assert [sample["output_ids"] for sample in samples] == [one] * 3


async def test_prefixes_are_cached_as_the_worker_caches(decode: Decode, prompt_ids: PromptIds) -> None:
    ids = prompt_ids(400, 9)
    await decode.split(ids, 4)
    expected = await decode.expected([*ids, *prompt_ids(30)], 8)
    again = await decode.local([*ids, *prompt_ids(30)], 8)
    assert again["output_ids"] == expected["output_ids"]
    assert again["meta_info"]["cached_tokens"] >= (400 if decode.caches else 0)
    assert decode.caches or again["meta_info"]["cached_tokens"] == 0
    await decode.comes_to_rest()


async def test_a_pause_with_retraction_computes_it_again(decode: Decode, prompt_ids: PromptIds) -> None:
    prompts = [prompt_ids(120, 1), prompt_ids(1500, 2)]
    expected = [(await decode.expected(ids, 60))["output_ids"] for ids in prompts]
    running = [asyncio.create_task(decode.local(ids, 60)) for ids in prompts]
    await asyncio.sleep(0.4)
    await decode.post(decode.worker, {"mode": "retract"}, "/pause_generation")
    await asyncio.sleep(0.2)
    await decode.post(decode.worker, {}, "/continue_generation")
    assert [answer["output_ids"] for answer in await asyncio.gather(*running)] == expected
    await decode.comes_to_rest()


async def test_the_queue_shows_in_the_loads(decode: Decode, prompt_ids: PromptIds) -> None:
    waiting = [asyncio.create_task(decode.local(prompt_ids(2500, n), 2)) for n in range(3)]
    seen: list[tuple[int, int]] = []
    while not all(task.done() for task in waiting):
        load = await decode.load()
        seen.append((load["num_waiting_reqs"], load["num_waiting_uncached_tokens"]))
        await asyncio.sleep(0.02)
    await asyncio.gather(*waiting)
    assert max(reqs for reqs, _ in seen) >= 1
    assert max(tokens for _, tokens in seen) >= 2500
    await decode.comes_to_rest()


async def test_neither_side_starves_under_the_other(decode: Decode, prompt_ids: PromptIds) -> None:
    """More of both than there is room for: both go on, by their shares."""
    before = (await decode.local_prefill())["contended_tokens"]
    stop = asyncio.Event()
    finished = {"local": 0, "split": 0}

    async def client(side: str, number: int) -> None:
        run = decode.local if side == "local" else decode.split
        while not stop.is_set():
            await run(prompt_ids(60, number), 12)
            finished[side] += 1

    clients = [asyncio.create_task(client(side, n)) for side in finished for n in range(12)]
    while min(finished.values()) < 15 and not any(t.done() for t in clients):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    stop.set()
    await asyncio.gather(*clients)
    after = (await decode.local_prefill())["contended_tokens"]
    local, split = (after[side] - before[side] for side in ("local", "split"))
    assert min(finished.values()) >= 15
    assert max(finished.values()) <= 4 * min(finished.values())
    assert local + split == 0 or 0.25 <= local / (local + split) <= 0.75
    await decode.comes_to_rest()


async def test_turned_off_while_serving(decode: Decode, prompt_ids: PromptIds) -> None:
    """Hooks that raise: those that wait get a 503, all others are served, and then it is stock SGLang."""
    ids = prompt_ids(80)
    expected = (await decode.expected(ids, 150))["output_ids"]
    first, split = (asyncio.create_task(run(ids, 150)) for run in (decode.local, decode.split))
    await asyncio.sleep(0.5)
    waiting = [
        asyncio.create_task(decode.post(decode.worker, body(prompt_ids(2500, n), 4) | {LOCAL_MARK: True}))
        for n in range(4)
    ]
    await asyncio.sleep(0.3)
    decode.switch("break", on=True, text="meter" if decode.caches else "share")
    statuses = [status for status, _ in await asyncio.gather(*waiting)]
    assert set(statuses) <= {200, 503}
    assert 503 in statuses
    assert (await split)["output_ids"] == expected
    assert (await first)["output_ids"] == expected
    told = await decode.local_prefill()
    assert not told["on"]
    assert "hooks failed" in told["why"]
    assert (await decode.post(decode.worker, body(ids, 4) | {LOCAL_MARK: True}))[0] == 400
    assert (await decode.split(ids, 8))["output_ids"] == expected[:8]
    await decode.comes_to_rest()
