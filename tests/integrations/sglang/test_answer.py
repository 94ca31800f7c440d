"""What is read of answers and of the errors told inside streams."""

import json
from typing import Any

import pytest

from kvferry.integrations.sglang.answer import Usage, usage_of
from kvferry.integrations.sglang.body import Endpoint
from kvferry.integrations.sglang.merge import events_by_index, merged, merged_event
from kvferry.integrations.sglang.stream_error import stream_error

GENERATE, CHAT, COMPLETIONS = Endpoint.GENERATE, Endpoint.CHAT, Endpoint.COMPLETIONS


def sse(*events: Any) -> bytes:
    return b"".join(
        b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n" for event in events
    )


def test_the_answers_of_all_roles(fake: Any) -> None:
    answers = fake.golden("generate_answers")
    prefill = usage_of(GENERATE, json.dumps(answers["prefill"]).encode())
    assert (prefill.prompt_tokens, prefill.output_tokens, prefill.cached_tokens) == (3000, 1, 0)
    assert prefill.prefill_s == pytest.approx(0.535, abs=0.001)
    assert prefill.after_prefill_s == pytest.approx(0.0187, abs=0.001)
    decode = usage_of(GENERATE, json.dumps(answers["decode"]).encode())
    assert (decode.output_tokens, decode.prefill_s) == (16, None)
    colocated = usage_of(GENERATE, json.dumps(answers["colocated"]).encode())
    assert colocated.first_token_s == pytest.approx(0.4626, abs=0.001)


def test_a_batch_is_summed() -> None:
    batch = [{"meta_info": {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1}}] * 4
    usage = usage_of(GENERATE, json.dumps(batch).encode())
    assert (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) == (12, 8, 4)


def test_of_a_stream_the_last_event_of_each_sequence_counts() -> None:
    events = [
        {"index": i, "meta_info": {"prompt_tokens": 5, "completion_tokens": n}}
        for n in (1, 2, 3)
        for i in (0, 1)
    ]
    usage = usage_of(GENERATE, sse(*events) + b"data: [DONE]\n\n", 2)
    assert (usage.prompt_tokens, usage.output_tokens) == (10, 6)


def test_the_usage_of_an_openai_answer_and_stream() -> None:
    told = {
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    }
    assert usage_of(CHAT, json.dumps(told).encode()) == Usage(7, 2, 4)
    stream = sse({"choices": [{"delta": {}}]}, {"choices": [], **told}, {"choices": []}) + b"data: [DONE]\n\n"
    assert usage_of(CHAT, stream, 1) == Usage(7, 2, 4)
    assert usage_of(CHAT, sse({"choices": []}), 1) == Usage()


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"[1]", b'"x"', b'{"meta_info": 5}', b'{"usage": []}', b"\xff"]
)
@pytest.mark.parametrize("endpoint", list(Endpoint))
@pytest.mark.parametrize("events", [0, 1])
def test_an_unreadable_answer_says_nothing(endpoint: Endpoint, raw: bytes, events: int) -> None:
    assert usage_of(endpoint, raw, events) == Usage()


def test_the_kept_end_of_a_stream_may_begin_inside_an_event() -> None:
    stream = sse({"meta_info": {"completion_tokens": 1}}, {"meta_info": {"completion_tokens": 2}})
    assert usage_of(GENERATE, stream[10:], 1).output_tokens == 2


ABORT = {"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "m", "status_code": 500}}}


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (sse({"error": {"message": "m", "code": 503}}), (503, "m")),
        (b'data: {"error": {"object": "error", "message": "m", "code": 400}}\n\n', (400, "m")),
        (sse({"error": {"message": "m", "code": "bad"}}), (500, "m")),
        (sse({"error": {"message": "m"}}) + b"data: [DONE]\n\n", (500, "m")),
        (sse({"error": "plain"}), (500, '{"error":"plain"}')),
        (sse(ABORT), (500, "m")),
        (sse({"text": "a"}, ABORT), (500, "m")),
        (sse({"meta_info": {"finish_reason": {"type": "abort", "message": "asked for"}}}), None),
        (sse({"text": 'data: {"error": {"message": "quoted"}}'}), None),
        (sse({"text": '"type":"abort"'}), None),
        (sse({"text": "a"}), None),
        (b": comment\n\n", None),
        (b"", None),
    ],
)
def test_errors_told_inside_a_stream(stream: bytes, told: tuple[int, str] | None) -> None:
    assert stream_error(stream) == told


def test_prompt_logprobs_are_lent_to_every_kind_of_answer() -> None:
    before = {"meta_info": {"input_token_logprobs": [[-1.0, 5, None]], "input_top_logprobs": []}}
    after = {
        "text": "x",
        "meta_info": {"input_token_logprobs": [], "output_token_logprobs": [[-2.0, 6, None]]},
    }
    one = json.loads(merged(GENERATE, json.dumps(before).encode(), json.dumps(after).encode()))
    assert one["meta_info"]["input_token_logprobs"] == [[-1.0, 5, None]]
    assert one["meta_info"]["output_token_logprobs"] == [[-2.0, 6, None]]
    many = json.loads(merged(GENERATE, json.dumps([before] * 2).encode(), json.dumps([after] * 2).encode()))
    assert [each["meta_info"]["input_token_logprobs"] for each in many] == [[[-1.0, 5, None]]] * 2
    told = {"choices": [{"logprobs": {"tokens": ["p", "q", "x"], "token_logprobs": [None, -1, -2]}}]}
    own = {"choices": [{"logprobs": {"tokens": ["x", "y"], "token_logprobs": [-2, -3]}}]}
    completion = json.loads(merged(COMPLETIONS, json.dumps(told).encode(), json.dumps(own).encode()))
    assert completion["choices"][0]["logprobs"]["tokens"] == ["p", "q", "x", "y"]
    assert completion["choices"][0]["logprobs"]["token_logprobs"] == [None, -1, -2, -3]


def test_events_that_need_nothing_pass_as_they_are() -> None:
    before = events_by_index(GENERATE, sse({"index": 0, "meta_info": {"input_token_logprobs": [1]}}))
    for event in (b"data: [DONE]", b": c", b'data:  {"x": 1}', b'data: {"error":  {"message": "m"}}'):
        assert merged_event(GENERATE, before, event) == event
    lent = merged_event(GENERATE, before, b'data: {"index":0,"meta_info":{}}')
    assert json.loads(lent[6:])["meta_info"]["input_token_logprobs"] == [1]
