"""A prompt's log-probabilities from the prefill worker's answer, and a worker's errors in one shape."""

import json
from typing import Any

import pytest

from kvferry.integrations.sglang.body import Endpoint
from kvferry.integrations.sglang.merge import events_by_index, merged, merged_event
from kvferry.integrations.sglang.worker_error import in_openai_shape


def event(content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode()


def choice(index: int, *tokens: str) -> dict[str, Any]:
    logprobs = {
        "tokens": list(tokens),
        "token_logprobs": [-float(len(token)) for token in tokens],
        "top_logprobs": None,
        "text_offset": [-1] * len(tokens),
    }
    return {"index": index, "text": "".join(tokens), "logprobs": logprobs}


def test_only_the_first_event_of_each_choice_tells_the_prompt() -> None:
    prefill = b"\n\n".join(
        [event({"choices": [choice(1, "x", "yy", "c")]}), event({"choices": [choice(0, "x", "a")]}), b""]
    )
    before = events_by_index(Endpoint.COMPLETIONS, prefill + b"data: [DONE]\n\n")
    sent = [choice(0, "a"), choice(1, "c"), choice(0, "b"), choice(1, "d")]
    got = [
        json.loads(merged_event(Endpoint.COMPLETIONS, before, event({"choices": [one]}))[6:])["choices"][0]
        for one in sent
    ]
    assert [one["logprobs"]["tokens"] for one in got] == [["x", "a"], ["x", "yy", "c"], ["b"], ["d"]]
    assert got[1]["logprobs"]["token_logprobs"] == [-1.0, -2.0, -1.0]
    assert got[0]["logprobs"]["top_logprobs"] is None


def test_every_event_of_generate_tells_the_prompt() -> None:
    lent = [[None, 5, None], [-1.5, 6, None]]
    before = events_by_index(
        Endpoint.GENERATE, event({"index": 1, "meta_info": {"input_token_logprobs": lent}}) + b"\n\n"
    )
    for _ in range(2):
        told = merged_event(
            Endpoint.GENERATE, before, event({"index": 1, "meta_info": {"input_token_logprobs": []}})
        )
        assert json.loads(told[6:])["meta_info"]["input_token_logprobs"] == lent


@pytest.mark.parametrize(
    "passing",
    [
        b"data: [DONE]",
        b": comment",
        event({"error": {"message": "no"}}),
        event({"choices": [], "usage": {"prompt_tokens": 1}}),
        event({"index": 7, "meta_info": {}}),
    ],
)
@pytest.mark.parametrize("endpoint", [Endpoint.GENERATE, Endpoint.COMPLETIONS])
def test_what_has_no_part_in_it_passes_byte_for_byte(endpoint: Endpoint, passing: bytes) -> None:
    assert merged_event(endpoint, {0: choice(0, "x", "a") | {"meta_info": {}}}, passing) == passing


def test_whole_answers_are_merged_choice_by_choice() -> None:
    prefill = json.dumps({"choices": [choice(0, "x", "a"), choice(1, "y", "c")]}).encode()
    decode = json.dumps({"choices": [choice(0, "a", "b"), choice(1, "c")]}).encode()
    told = json.loads(merged(Endpoint.COMPLETIONS, prefill, decode))
    assert [one["logprobs"]["tokens"] for one in told["choices"]] == [["x", "a", "b"], ["y", "c"]]


@pytest.mark.parametrize(
    ("told", "message", "kind"),
    [
        (
            {"object": "error", "message": "too long", "type": "BadRequestError"},
            "too long",
            "BadRequestError",
        ),
        ({"error": {"message": "too long"}}, "too long", "invalid_request_error"),
        ({"error": "too long"}, "too long", "invalid_request_error"),
        ({"detail": [{"loc": ["body"]}]}, '[{"loc":["body"]}]', "invalid_request_error"),
        ({}, "the worker answered 400", "invalid_request_error"),
    ],
)
def test_a_workers_errors_have_one_shape(told: dict[str, Any], message: str, kind: str) -> None:
    shaped = json.loads(in_openai_shape(400, json.dumps(told).encode()))
    assert shaped["error"] == {"message": message, "type": kind, "param": None, "code": None}
    assert {key: shaped[key] for key in told if key != "error"} == {
        key: value for key, value in told.items() if key != "error"
    }


@pytest.mark.parametrize(
    "body",
    [b"Internal Server Error", b"[1]", b"", b'{"error": {"code":1,"message":"m","param":null,"type":"t"}}'],
)
def test_what_lacks_nothing_or_is_no_object_passes(body: bytes) -> None:
    assert in_openai_shape(500, body) == body
