"""What passes through the router, in both directions, and what must not."""

import gzip
import json
from typing import Any

import pytest

TEXT = {"text": "hello", "sampling_params": {"max_new_tokens": 4}}
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("chunk_bytes", [0, 1, 7])
@pytest.mark.parametrize("policy", ["always_split", "always_colocated"])
@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
async def test_a_stream_passes_byte_for_byte(
    pair: Any, route: Any, fake: Any, path: str, policy: str, chunk_bytes: int
) -> None:
    workers = await pair()
    router = await route(*workers.all, policy=policy)
    sender = workers.dec[0] if policy == "always_split" else workers.col[0]
    events = [
        'data: {"odd":"é\\u0000"}\r\n\r\n',
        ": a comment\n\n",
        'data: {"b": [1,  2]}\n\n',
        "data: [DONE]\n\n",
    ]
    sent = "".join(events).encode()
    sender.act = fake.Act(chunk_bytes=chunk_bytes, body=sent)
    answer = await router.post(path, {**(TEXT if path == "/generate" else CHAT), "stream": True})
    assert answer.status == 200
    assert answer.raw == sent
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"


async def test_the_body_reaches_the_worker_byte_for_byte_with_fields_at_its_end(
    worker: Any, route: Any
) -> None:
    one = await worker()
    router = await route(one)
    raw = (
        '{ "text" :\t"h\\u00e9llo é",\n "unknown" : {"a":[1.0, 1e5, null]}, "sampling_params": {"odd": 1}} \n'
    )
    assert (await router.post(body=raw)).status == 200
    sent = one.seen[0].raw.decode()
    assert sent.startswith(raw.rstrip()[:-1])
    assert set(json.loads(sent)) - set(json.loads(raw)) == {"rid"}


async def test_headers_pass_both_ways_and_hop_by_hop_ones_do_not(worker: Any, route: Any, fake: Any) -> None:
    one = await worker()
    one.act = fake.Act(headers={"X-Worker": "w", "Keep-Alive": "timeout=5", "Content-Encoding": "identity"})
    router = await route(one)
    sent = {"X-Client": "c", "Authorization": "Bearer k", "TE": "trailers", "Proxy-Authorization": "secret"}
    answer = await router.post(body=TEXT, headers=sent)
    seen = one.seen[0].headers
    assert seen["X-Client"] == "c"
    assert seen["Authorization"] == "Bearer k"
    assert "TE" not in seen
    assert "Proxy-Authorization" not in seen
    assert answer.headers["X-Worker"] == "w"
    assert "Keep-Alive" not in answer.headers
    assert answer.headers["Content-Encoding"] == "identity"
    assert answer.headers["x-kvferry-plan"] == f"colocated:{one.url}"


async def test_a_compressed_body_is_not_announced_as_compressed_to_the_worker(
    worker: Any, route: Any
) -> None:

    one = await worker()
    router = await route(one)
    packed = gzip.compress(json.dumps(TEXT).encode())
    answer = await router.post(
        body=packed, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"}
    )
    assert answer.status == 200
    assert one.seen[0].json["text"] == "hello"
    assert "Content-Encoding" not in one.seen[0].headers


async def test_both_halves_get_the_same_room_and_the_way_to_the_prefill_worker(pair: Any, route: Any) -> None:
    workers = await pair(prefills=2, colocated=0)
    router = await route(*workers.all)
    for _ in range(4):
        assert (await router.post(body=TEXT)).status == 200
    rooms = set()
    for place, prefill in enumerate(workers.pre):
        for seen in prefill.seen:
            assert seen.json["bootstrap_host"] == "127.0.0.1"
            assert seen.json["bootstrap_port"] == 7000 + place
            rooms.add(seen.json["bootstrap_room"])
            twin = [s for s in workers.dec[0].seen if s.json["bootstrap_room"] == seen.json["bootstrap_room"]]
            assert [one.raw for one in twin] == [seen.raw]
    assert len(rooms) == 4
    assert all(0 <= room < 2**63 for room in rooms)


async def test_a_given_bootstrap_port_wins(worker: Any, route: Any, fake: Any) -> None:
    from kvferry.integrations.sglang.poller import Target
    from kvferry.policy.worker import Role

    rooms = fake.Rooms()
    prefill, decode = await worker("prefill", rooms), await worker("decode", rooms)
    router = await route(Target(prefill.url, Role.PREFILL, 4321), Target(decode.url, Role.DECODE))
    assert (await router.post(body=TEXT)).status == 200
    assert decode.seen[0].json["bootstrap_port"] == 4321


@pytest.mark.parametrize(
    ("status", "headers", "body", "message"),
    [
        (429, {"Retry-After": "7"}, b'{"error": {"message": "queue is full"}}', "queue is full"),
        (400, {}, b'{"object": "error", "message": "too long", "code": 400}', "too long"),
        (
            500,
            {"X-Why": "w"},
            b'{"error": {"message": "m", "type": "t", "param": 1, "code": 2},  "odd": 1}',
            "m",
        ),
        (422, {}, b'{"detail": [{"loc": ["x"]}]}', '[{"loc":["x"]}]'),
        (503, {}, b"plain text", ""),
    ],
)
async def test_a_workers_error_passes_with_status_headers_and_text(
    worker: Any, route: Any, fake: Any, status: int, headers: dict[str, str], body: bytes, message: str
) -> None:
    one = await worker()
    router = await route(one)
    one.act = fake.Act(status=status, headers=headers, body=body)
    answer = await router.post(body=TEXT)
    assert answer.status == status
    if message:
        told, was = json.loads(answer.raw), json.loads(body)
        assert told["error"]["message"] == message
        assert {name: told[name] for name in was if name != "error"} == {
            k: v for k, v in was.items() if k != "error"
        }
    if status in (500, 503):
        assert answer.raw == body
    for name, value in headers.items():
        assert answer.headers[name] == value
    assert "x-kvferry-id" in answer.headers
    assert router.idle()


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
async def test_a_clients_own_mistake_is_not_retried(worker: Any, route: Any, fake: Any, status: int) -> None:
    workers = [await worker(), await worker()]
    for one in workers:
        one.act = fake.Act(status=status)
    router = await route(*workers)
    answer = await router.post(body=TEXT)
    assert answer.status == status
    assert sum(len(one.seen) for one in workers) == 1
    assert router.record(answer.headers).outcome.status == "rejected"


async def test_batches_and_samples_are_run_by_a_pair(pair: Any, route: Any) -> None:
    workers = await pair(colocated=0)
    router = await route(*workers.all)
    answer = await router.post(body={"text": ["a", "b", "c"]})
    assert answer.status == 200
    assert len(json.loads(answer.raw)) == 3
    assert len(set(workers.dec[0].seen[0].json["rid"])) == 3
    answer = await router.post(body={"text": "a", "sampling_params": {"n": 3}, "rid": "mine"})
    assert [one["text"] for one in json.loads(answer.raw)] == ["from decode"] * 3
    sent = workers.dec[0].seen[1].json
    assert sent["text"] == ["a"] * 3
    assert sent["sampling_params"]["n"] == 1
    assert sent["rid"] == "mine"
    answer = await router.post("/v1/chat/completions", {**CHAT, "n": 2})
    assert answer.status == 400
    assert json.loads(answer.raw)["error"]["param"] == "n"


async def test_prompt_logprobs_come_from_the_prefill_worker(pair: Any, route: Any) -> None:
    workers = await pair(colocated=0)
    router = await route(*workers.all)
    for stream in (False, True):
        answer = await router.post(
            body={**TEXT, "return_logprob": True, "logprob_start_len": 0, "stream": stream}
        )
        last = answer.raw.split(b"\n\n")[-3].removeprefix(b"data: ") if stream else answer.raw
        assert json.loads(last)["meta_info"]["input_token_logprobs"] == [[-0.5, 7, None]]


async def test_an_api_key_is_asked_for_and_passed_on(worker: Any, route: Any) -> None:
    one = await worker()
    router = await route(one, api_key="k3y")
    for headers in ({}, {"Authorization": "Bearer nope"}, {"Authorization": "Bearer k\u00e9y"}):
        answer = await router.post(body=TEXT, headers=headers)
        assert answer.status == 401
        assert json.loads(answer.raw)["error"]["code"] == "invalid_api_key"
    assert not one.seen
    assert (await router.get("/kvferry/workers")).status == 401
    assert (await router.get("/health")).status == 200
    assert (await router.post(body=TEXT, headers={"Authorization": "Bearer k3y"})).status == 200
    assert one.seen[0].headers["Authorization"] == "Bearer k3y"


async def test_a_body_over_the_limit_is_refused_with_its_limit(worker: Any, route: Any) -> None:
    one = await worker()
    router = await route(one, max_payload_size=1000)
    assert (await router.post(body={"text": "a" * 900})).status == 200
    answer = await router.post(body={"text": "a" * 1100})
    assert answer.status == 413
    assert "1000 bytes" in json.loads(answer.raw)["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "names"),
    [
        ("/generate", b"{", 400, "JSON"),
        ("/generate", b"{}", 400, "text"),
        ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": -1}}, 400, "max_new_tokens"),
        ("/generate", {"input_ids": [10**20]}, 400, "input_ids"),
        ("/generate", {"text": "a", "model": "gpt-9"}, 404, "gpt-9"),
        ("/generate", b'{"x": ' + b"[" * 100_000, 400, "JSON"),
        ("/v1/completions", {"max_tokens": 3}, 400, "prompt"),
        ("/v1/chat/completions", {"messages": [], "model": "m"}, 400, "messages"),
        ("/v1/embeddings", {"input": "a"}, 404, "/v1/embeddings"),
    ],
)
async def test_bad_input_gets_one_openai_error(
    worker: Any, route: Any, path: str, body: Any, status: int, names: str
) -> None:
    one = await worker()
    router = await route(one)
    answer = await router.post(path, body)
    assert answer.status == status
    error = json.loads(answer.raw)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert names in error["message"]
    assert not one.seen
    assert router.idle()


async def test_without_workers_it_says_so(route: Any) -> None:
    from kvferry.integrations.sglang.poller import Target

    router = await route(Target("http://127.0.0.1:9"), wait_for=0)
    answer = await router.post(body=TEXT)
    assert answer.status == 503
    assert "no worker" in json.loads(answer.raw)["error"]["message"]
    assert (await router.get("/ready")).status == 503
    assert (await router.get("/health")).status == 200
    assert json.loads((await router.get("/v1/models")).raw)["data"] == []
