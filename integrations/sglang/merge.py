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


def merged_event(endpoint: Endpoint, prefill: dict[int, Any], event: bytes) -> bytes:
    """One server-sent event with the prompt's log-probabilities in it; others pass as they are.

    `prefill` is the prefill worker's answer by index. /generate repeats them in every event of a sequence,
    /v1/completions tells them in its first one only: `prefill` forgets those.
    """
    if not event.startswith(b"data: {"):
        return event
    after = msgspec.json.decode(event[6:])
    if endpoint is Endpoint.GENERATE:
        before = prefill.get(after.get("index", 0))
        if before is None or "meta_info" not in after:
            return event
        _merge(endpoint, before, after)
    else:
        lent = [
            _lend(prefill.pop(choice.get("index", 0)), choice)
            for choice in after.get("choices") or ()
            if choice.get("logprobs") and choice.get("index", 0) in prefill
        ]
        if not lent:
            return event
    return b"data: " + msgspec.json.encode(after)


def events_by_index(endpoint: Endpoint, stream: bytes) -> dict[int, Any]:
    """Of each sequence in a finished stream what knows the prompt: the last event of /generate, the first
    choice with log-probabilities of /v1/completions."""
    found: dict[int, Any] = {}
    for line in stream.split(b"\n"):
        if not line.startswith(b"data: {"):
            continue
        event = msgspec.json.decode(line[6:])
        if endpoint is Endpoint.GENERATE:
            found[event.get("index", 0)] = event
            continue
        for choice in event.get("choices") or ():
            if choice.get("logprobs"):
                found.setdefault(choice.get("index", 0), choice)
    return found


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
        if choice.get("logprobs") and other.get("logprobs"):
            _lend(choice, other)
    return after


def _lend(choice: Any, other: Any) -> Any:
    """Put the prompt's part of a prefill worker's choice in front of the decode worker's."""
    source, target = choice["logprobs"], other["logprobs"]
    prompt = len(source["tokens"]) - 1  # the last one is the first output token, which decode has too
    for key in _LISTS:
        if isinstance(source.get(key), list) and isinstance(target.get(key), list):
            target[key] = source[key][:prompt] + target[key]
    return other
