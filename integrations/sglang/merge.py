"""Log-probabilities of a prompt: in a split only the prefill worker knows them, so its answer lends them
to the decode worker's."""

from typing import Any

import msgspec

from kvferry.integrations.sglang.body import Endpoint

_INPUT_KEYS = ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs")
_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def merged(endpoint: Endpoint, prefill: bytes, decode: bytes) -> bytes:
    """The decode worker's answer (a JSON body) with the prompt's log-probabilities in it."""
    before, after = msgspec.json.decode(prefill), msgspec.json.decode(decode)
    return msgspec.json.encode(_merge(endpoint, before, after))


def merged_event(endpoint: Endpoint, prefill: Any, event: bytes) -> bytes:
    """One server-sent event with the prompt's log-probabilities in it; others pass as they are.

    `prefill` is the prefill worker's answer, decoded, its sequences by index.
    """
    if not event.startswith(b"data: {"):
        return event
    after = msgspec.json.decode(event[6:])
    index = after.get("index", 0)
    if index in prefill and "error" not in after:
        _merge(endpoint, prefill[index], after)
    return b"data: " + msgspec.json.encode(after)


def events_by_index(stream: bytes) -> dict[int, Any]:
    """The last event of each sequence in a finished stream."""
    last: dict[int, Any] = {}
    for line in stream.split(b"\n"):
        if line.startswith(b"data: {"):
            event = msgspec.json.decode(line[6:])
            last[event.get("index", 0)] = event
    return last


def _merge(endpoint: Endpoint, before: Any, after: Any) -> Any:
    if isinstance(after, list):
        return [_merge(endpoint, one, other) for one, other in zip(before, after, strict=True)]
    if endpoint is Endpoint.GENERATE:
        source, target = before.get("meta_info", {}), after.get("meta_info", {})
        for key in _INPUT_KEYS:
            if source.get(key):
                target[key] = source[key]
        return after
    for choice, other in zip(before.get("choices", []), after.get("choices", []), strict=False):
        source, target = choice.get("logprobs"), other.get("logprobs")
        if not source or not target:
            continue
        prompt = len(source["tokens"]) - 1  # the last one is the first output token, which decode has too
        for key in _LISTS:
            if isinstance(source.get(key), list) and isinstance(target.get(key), list):
                target[key] = source[key][:prompt] + target[key]
    return after
