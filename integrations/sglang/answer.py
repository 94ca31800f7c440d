"""What a worker's answer says about itself: token counts, cached tokens, stages."""

from dataclasses import dataclass
from typing import Any

import msgspec

from kvferry.integrations.sglang.body import Endpoint


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _OpenAIUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Meta(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    queue_time: float | None = None
    forward_entry_time: float | None = None
    prefill_finished_time: float | None = None
    first_token_latency: float | None = None
    request_received_ts: float | None = None
    request_finished_ts: float | None = None
    e2e_latency: float | None = None


class _Answer(msgspec.Struct):
    meta_info: _Meta | None = None
    usage: _OpenAIUsage | None = None
    index: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over the answer's sequences; None where the worker did not say. Times are the worker's own:
    `prefill_s` from the first forward pass to the prompt's end, `after_prefill_s` from there to the
    answer's end (on a prefill worker: the KV move and its hand-over)."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    after_prefill_s: float | None = None
    first_token_s: float | None = None


_one = msgspec.json.Decoder(_Answer)
_many = msgspec.json.Decoder(list[_Answer])


def usage_of(endpoint: Endpoint, body: bytes, events: int = 0) -> Usage:
    """Read an answer's body, or the end of a stream of so many sequences. An unreadable one says nothing."""
    try:
        answers = _last_events(endpoint, body, events) if events else _answers(body)
    except msgspec.DecodeError:
        return Usage()
    if endpoint is Endpoint.GENERATE:
        return _of_meta([answer.meta_info for answer in answers if answer.meta_info])
    for answer in reversed(answers):
        if answer.usage is not None:
            details = answer.usage.prompt_tokens_details
            return Usage(
                prompt_tokens=answer.usage.prompt_tokens,
                output_tokens=answer.usage.completion_tokens,
                cached_tokens=details.cached_tokens if details else None,
            )
    return Usage()


def _answers(body: bytes) -> list[_Answer]:
    return _many.decode(body) if body.lstrip()[:1] == b"[" else [_one.decode(body)]


def _last_events(endpoint: Endpoint, body: bytes, sequences: int) -> list[_Answer]:
    """From the end: /generate's last event of each sequence (batched streams interleave them), the one event
    that carries an OpenAI usage."""
    last: dict[int, _Answer] = {}
    for line in reversed(body.split(b"\n")):
        if not line.startswith(b"data: {"):
            continue
        try:
            answer = _one.decode(line[6:])
        except msgspec.DecodeError:
            continue  # the kept end of a stream may begin inside an event
        if endpoint is not Endpoint.GENERATE and answer.usage is None:
            continue
        last.setdefault(answer.index, answer)
        if endpoint is not Endpoint.GENERATE or len(last) >= sequences:
            break
    return list(last.values())


def _of_meta(metas: list[_Meta]) -> Usage:
    if not metas:
        return Usage()
    slowest = max(metas, key=lambda meta: meta.first_token_latency or 0.0)
    finished, entered = slowest.prefill_finished_time, slowest.forward_entry_time
    ended = slowest.request_finished_ts
    return Usage(
        prompt_tokens=_sum(meta.prompt_tokens for meta in metas),
        output_tokens=_sum(meta.completion_tokens for meta in metas),
        cached_tokens=_sum(meta.cached_tokens for meta in metas),
        queue_s=slowest.queue_time,
        prefill_s=finished - entered if finished and entered else None,
        after_prefill_s=max(0.0, ended - finished) if ended and finished else None,
        first_token_s=slowest.first_token_latency,
    )


def _sum(values: Any) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
