"""What is read of a request's body, and that the rest of it stays as it came."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.sglang.body import MAX_SAMPLES, Body, Endpoint, parse
from kvferry.integrations.sglang.errors import BadRequest

GENERATE, CHAT, COMPLETIONS = Endpoint.GENERATE, Endpoint.CHAT, Endpoint.COMPLETIONS
numbers = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=12,
)
objects = st.dictionaries(st.text(), values, max_size=6)
spaces = st.text(alphabet=" \t\r\n", max_size=4)
added = {"rid": ["a", "b"], "bootstrap_room": 2**62 - 1, "bootstrap_host": "h\u00e9"}


def written(value: Any, indent: int | None, ascii_only: bool) -> bytes:
    return json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


@given(objects, spaces, spaces, st.sampled_from([None, 0, 2]), st.booleans())
def test_added_fields_leave_every_other_byte_alone(
    given_fields: dict[str, Any], before: str, after: str, indent: int | None, ascii_only: bool
) -> None:
    raw = before.encode() + written(given_fields, indent, ascii_only) + after.encode()
    sent = Body(GENERATE, raw, (b"x",)).with_fields(added)
    kept = raw.rstrip()[:-1].rstrip()
    assert sent.startswith(kept)
    assert json.loads(sent) == {**given_fields, **added}


@given(objects)
def test_no_fields_change_nothing(given_fields: dict[str, Any]) -> None:
    raw = written(given_fields, None, True) + b" \n"
    assert Body(GENERATE, raw, (b"x",)).with_fields({}) is raw


def test_an_added_field_wins_over_the_clients() -> None:
    sent = parse(GENERATE, b'{"text": "a", "rid": null, "bootstrap_room": 7}').with_fields(added)
    assert json.loads(sent)["rid"] == ["a", "b"]
    assert json.loads(sent)["bootstrap_room"] == 2**62 - 1


@given(st.text(min_size=1, max_size=40), st.integers(0, 1000), st.booleans())
def test_a_text_prompt_is_read_in_its_own_bytes(text: str, limit: int, stream: bool) -> None:
    told = {"text": text, "sampling_params": {"max_new_tokens": limit, "odd": [1]}, "stream": stream}
    body = parse(GENERATE, json.dumps(told).encode())
    assert body.prompts == (text.encode(),)
    assert (body.max_new_tokens, body.stream, body.exact, body.batched) == (limit, stream, False, False)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), min_size=1, max_size=5))
def test_token_ids_are_read_alone_and_in_batches(lists: list[list[int]]) -> None:
    for endpoint, name in ((GENERATE, "input_ids"), (COMPLETIONS, "prompt")):
        batch = parse(endpoint, json.dumps({name: lists}).encode())
        assert batch.prompts == tuple(map(tuple, lists))
        assert (batch.batched, batch.exact, batch.sequences) == (True, True, len(lists))
        assert batch.prompt_units == sum(map(len, lists))
        alone = parse(endpoint, json.dumps({name: lists[0]}, indent=1).encode())
        assert (alone.prompts, alone.batched) == ((tuple(lists[0]),), False)


def test_defaults_are_those_of_the_endpoint() -> None:
    assert parse(GENERATE, b'{"text": "a"}').max_new_tokens == 128
    assert parse(COMPLETIONS, b'{"prompt": "a"}').max_new_tokens == 16
    chat = parse(CHAT, b'{"messages": [{"role": "user", "content": "a"}]}')
    assert chat.max_new_tokens is None
    assert chat.prompts == (b'[{"role": "user", "content": "a"}]',)
    assert parse(CHAT, b'{"messages": [{}], "max_tokens": 3, "max_completion_tokens": 5}').max_new_tokens == 5


def test_a_batch_of_samplings_counts_its_longest() -> None:
    raw = b'{"text": ["a", "b"], "sampling_params": [{"max_new_tokens": 3}, {"max_new_tokens": 9}]}'
    assert parse(GENERATE, raw).max_new_tokens == 9


def test_prompt_logprobs_are_asked_for_by_each_endpoints_own_flags() -> None:
    assert parse(GENERATE, b'{"text": "a", "return_logprob": true, "logprob_start_len": 0}').input_logprobs
    assert not parse(GENERATE, b'{"text": "a", "return_logprob": true}').input_logprobs
    assert parse(COMPLETIONS, b'{"prompt": "a", "echo": true, "logprobs": 1}').input_logprobs
    assert not parse(COMPLETIONS, b'{"prompt": "a", "echo": true}').input_logprobs


def test_ids_by_which_a_worker_knows_the_sequences() -> None:
    assert parse(GENERATE, b'{"text": "a"}').rids("r") == ["r"]
    assert parse(GENERATE, b'{"text": ["a", "b"]}').rids("r") == ["r_0", "r_1"]
    assert parse(GENERATE, b'{"text": ["a", "b"], "rid": "mine"}').rids("r") == ["mine_0", "mine_1"]
    assert parse(GENERATE, b'{"text": ["a", "b"], "rid": ["x", "y"]}').rids("r") == ["x", "y"]
    assert parse(GENERATE, b'{"text": "a", "rid": []}').rids("r") == ["r"]


@given(st.integers(2, 5), st.integers(1, 4), st.booleans(), st.booleans())
def test_samples_become_a_batch_prompt_by_prompt(n: int, prompts: int, many: bool, ids: bool) -> None:
    texts: list[Any] = [[i + 1] if ids else f"t{i}" for i in range(prompts)]
    name = "input_ids" if ids else "text"
    samplings = [{"n": n, "temperature": i} for i in range(prompts)]
    told = {
        name: texts if many else texts[0],
        "sampling_params": samplings if many else samplings[0],
        "odd": {"kept": 1},
    }
    body = parse(GENERATE, json.dumps(told).encode())
    one = body.expanded()
    sent = json.loads(one.raw)
    count = prompts if many else 1
    assert sent[name] == [text for text in texts[:count] for _ in range(n)]
    assert sent["odd"] == {"kept": 1}
    assert (one.samples, one.batched, one.sequences) == (1, True, body.sequences)
    assert len(one.rids("r")) == len(one.prompts) == n * count
    params = sent["sampling_params"]
    assert all(each["n"] == 1 for each in (params if many else [params]))
    assert one.expanded() is one


def test_one_sample_is_not_rewritten() -> None:
    body = parse(GENERATE, b'{"text":  "a"}')
    assert body.expanded() is body


DEEP = b"[" * 100_000 + b"]" * 100_000
BAD = [
    (GENERATE, b"", "JSON"),
    (GENERATE, b"{", "JSON"),
    (GENERATE, b'{"text": "a"} x', "JSON"),
    (GENERATE, b'\xef\xbb\xbf{"text": "a"}', "JSON"),
    (GENERATE, b'{"text": "\\ud800"}', "JSON"),
    (GENERATE, b'{"text": "\xff"}', "JSON"),
    (GENERATE, b'{"text": "a", "x": NaN}', "JSON"),
    (GENERATE, b'{"text": "a", "x": ' + DEEP + b"}", "JSON"),
    (GENERATE, b"[]", "object"),
    (GENERATE, b"null", "object"),
    (GENERATE, b"{}", "text, input_ids and input_embeds: none"),
    (GENERATE, b'{"text": "a", "input_ids": [1]}', "more than one"),
    (GENERATE, b'{"text": []}', "empty"),
    (GENERATE, b'{"text": [1]}', "text"),
    (GENERATE, b'{"input_ids": []}', "input_ids"),
    (GENERATE, b'{"input_ids": [[1], []]}', "input_ids"),
    (GENERATE, b'{"input_ids": ["a"]}', "input_ids"),
    (GENERATE, b'{"input_ids": [1.5]}', "input_ids"),
    (GENERATE, b'{"input_ids": [-1]}', "input_ids"),
    (GENERATE, b'{"input_ids": [99999999999999999999]}', "input_ids"),
    (GENERATE, b'{"input_ids": [[1], 2]}', "input_ids"),
    (GENERATE, b'{"input_ids": 5}', "input_ids"),
    (GENERATE, b'{"text": "a", "sampling_params": {"max_new_tokens": -1}}', "max_new_tokens"),
    (GENERATE, b'{"text": "a", "sampling_params": {"max_new_tokens": 1e400}}', "max_new_tokens"),
    (
        GENERATE,
        b'{"text": "a", "sampling_params": {"max_new_tokens": 99999999999999999999}}',
        "max_new_tokens",
    ),
    (GENERATE, b'{"text": "a", "sampling_params": {"n": 0}}', "n is 0"),
    (GENERATE, b'{"text": "a", "sampling_params": {"n": 1000000000}}', f"1 to {MAX_SAMPLES}"),
    (GENERATE, b'{"text": ["a", "b"], "sampling_params": [{"n": 2}, {"n": 3}]}', "same n"),
    (GENERATE, b'{"text": "a", "rid": 5}', "rid"),
    (GENERATE, b'{"text": "a", "stream": "yes"}', "stream"),
    (GENERATE, b'{"text": "a", "priority": 99999999999999999999}', "priority"),
    (GENERATE, b'{"text": "a", "logprob_start_len": -7}', "logprob_start_len"),
    (GENERATE, b'{"text": "a", "return_logprob": false, "logprob_start_len": -2}', "logprob_start_len"),
    (GENERATE, b'{"text": ["a", "b"], "logprob_start_len": [0, -2]}', "logprob_start_len"),
    (COMPLETIONS, b"{}", "prompt"),
    (COMPLETIONS, b'{"prompt": null}', "prompt"),
    (COMPLETIONS, b'{"prompt": []}', "prompt"),
    (COMPLETIONS, b'{"prompt": ["a", 1]}', "prompt"),
    (COMPLETIONS, b'{"prompt": {}}', "prompt"),
    (COMPLETIONS, b'{"prompt": true}', "prompt"),
    (COMPLETIONS, b'{"prompt": [[1], ["a"]]}', "prompt"),
    (COMPLETIONS, b'{"prompt": "a", "max_tokens": -1}', "max_tokens"),
    (COMPLETIONS, b'{"prompt": "a", "n": 0}', "n is 0"),
    (CHAT, b"{}", "messages"),
    (CHAT, b'{"messages": [ ]}', "messages"),
    (CHAT, b'{"messages": {}}', "messages"),
    (CHAT, b'{"messages": "]"}', "messages"),
    (CHAT, b'{"messages": [{}], "max_tokens": -1}', "max_tokens"),
    (CHAT, b'{"messages": [{}], "n": "2"}', "$.n"),
]


@pytest.mark.parametrize(("endpoint", "raw", "names"), BAD, ids=lambda value: repr(value)[:60])
def test_a_wrong_body_is_refused_by_name(endpoint: Endpoint, raw: bytes, names: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(endpoint, raw)
    assert names in refused.value.message
    assert refused.value.status == 400
    assert len(refused.value.message) < 300


def test_of_repeated_keys_the_last_counts_as_for_the_worker() -> None:
    assert parse(GENERATE, b'{"text": "a", "text": ["b"]}').prompts == (b"b",)


@given(
    st.sampled_from(list(Endpoint)),
    st.one_of(st.binary(max_size=60), objects.map(lambda o: json.dumps(o).encode())),
)
def test_whatever_comes_is_read_or_refused(endpoint: Endpoint, raw: bytes) -> None:
    try:
        body = parse(endpoint, raw)
    except BadRequest:
        return
    assert body.sequences >= 1
