"""Answers in SGLang's words: whole ones, and the events of a stream."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from kvferry.integrations.sglang.body import Endpoint
from kvferry.integrations.sglang.simulated import filler
from kvferry.integrations.sglang.simulated.asked import Asked
from kvferry.integrations.sglang.simulated.flight import Failure, Flight, Kind
from kvferry.integrations.sglang.simulated.pump import Pump

DONE = b"data: [DONE]\n\n"
STOP_ID = 2
_encode = msgspec.json.encode
_OBJECTS = {
    Endpoint.COMPLETIONS: ("cmpl-", "text_completion", "text_completion"),
    Endpoint.CHAT: ("chatcmpl-", "chat.completion", "chat.completion.chunk"),
}


class Reply:
    """Of one request; `flights` in the order of its sequences."""

    __slots__ = ("_asked", "_flights", "_head", "_pump", "_told")

    def __init__(self, asked: Asked, flights: Sequence[Flight], pump: Pump) -> None:
        self._asked, self._flights, self._pump = asked, flights, pump
        self._told = [0] * len(flights)
        self._head: dict[str, Any] = {}
        if asked.endpoint is not Endpoint.GENERATE:
            prefix, _, _ = _OBJECTS[asked.endpoint]
            ident = prefix + flights[0].asked.rid
            self._head = {"id": ident, "object": "", "created": int(time.time()), "model": asked.model}

    def whole(self) -> bytes:
        """The answer's body, once every flight has ended."""
        endpoint = self._asked.endpoint
        if endpoint is Endpoint.GENERATE:
            answers = [self._generated(flight) for flight in self._flights]
            return _encode(answers if self._asked.several else answers[0])
        choices: list[dict[str, Any]] = []
        for place, flight in enumerate(self._flights):
            said = filler.text(0, flight.tokens)
            part = (
                {"message": {"role": "assistant", "content": said, "reasoning_content": None}}
                if endpoint is Endpoint.CHAT
                else {"text": said}
            )
            choices.append({"index": place, **part, "logprobs": None, **_finish(flight)})
        head = {**self._head, "object": _OBJECTS[endpoint][1]}
        return _encode({**head, "choices": choices, "usage": self._usage()})

    def event(self, flight: Flight) -> bytes:
        """What is new of one flight, as server-sent events; none where nothing is."""
        place = flight.asked.index
        if self._asked.endpoint is Endpoint.GENERATE:
            self._told[place] = flight.tokens
            answer = self._generated(flight)
            if self._asked.several:
                answer["index"] = place
            return b"data: " + _encode(answer) + b"\n\n"
        failure = flight.failure
        if failure is not None and failure.status:
            error = {"object": "error", "message": failure.message, "type": "InternalServerError"}
            return b"data: " + _encode({"error": {**error, "code": failure.status}}) + b"\n\n"
        said, self._told[place] = filler.text(self._told[place], flight.tokens), flight.tokens
        return b"data: " + _encode(self._chunk(place, said, flight)) + b"\n\n"

    def opening(self) -> bytes:
        """What a stream begins with before its first token: the role of a chat's author."""
        if self._asked.endpoint is not Endpoint.CHAT:
            return b""
        head = {**self._head, "object": _OBJECTS[Endpoint.CHAT][2]}
        delta = {"role": "assistant", "content": "", "reasoning_content": None}
        none = {"logprobs": None, "finish_reason": None, "matched_stop": None}
        return b"".join(
            b"data: " + _encode({**head, "choices": [{"index": place, "delta": delta, **none}]}) + b"\n\n"
            for place in range(len(self._flights))
        )

    def closing(self) -> bytes:
        """A stream's end: token counts where they were asked for, and the last event."""
        if self._asked.endpoint is Endpoint.GENERATE or not self._asked.usage:
            return DONE
        head = {**self._head, "object": _OBJECTS[self._asked.endpoint][2]}
        return b"data: " + _encode({**head, "choices": [], "usage": self._usage()}) + b"\n\n" + DONE

    def _chunk(self, place: int, said: str, flight: Flight) -> dict[str, Any]:
        endpoint = self._asked.endpoint
        part: dict[str, Any] = {"text": said}
        if endpoint is Endpoint.CHAT:
            part = {"delta": {"role": None, "content": said, "reasoning_content": None}}
        end = _finish(flight) if flight.ended else {"finish_reason": None, "matched_stop": None}
        choice = {"index": place, **part, "logprobs": None, **end}
        return {**self._head, "object": _OBJECTS[endpoint][2], "choices": [choice]}

    def _usage(self) -> dict[str, Any]:
        prompts = sum(flight.asked.prompt_tokens for flight in self._flights[:: self._asked.samples])
        outputs = sum(flight.tokens for flight in self._flights)
        cached = sum(flight.cached_tokens for flight in self._flights[:: self._asked.samples])
        return {
            "prompt_tokens": prompts,
            "total_tokens": prompts + outputs,
            "completion_tokens": outputs,
            "prompt_tokens_details": {"cached_tokens": cached},
            "reasoning_tokens": 0,
        }

    def _generated(self, flight: Flight) -> dict[str, Any]:
        return {
            "text": filler.text(0, flight.tokens),
            "output_ids": filler.token_ids(flight.tokens),
            "meta_info": self._meta(flight),
        }

    def _meta(self, flight: Flight) -> dict[str, Any]:
        job, scale, now_s = flight.job, self._pump.scale, time.time()
        meta: dict[str, Any] = {
            "id": flight.asked.rid,
            "finish_reason": _reason(flight) if flight.ended else None,
            "prompt_tokens": flight.asked.prompt_tokens,
            "weight_version": "default",
            "num_retractions": job.retractions,
            "reasoning_tokens": 0,
            "completion_tokens": flight.tokens,
            "cached_tokens": flight.cached_tokens,
            "cached_tokens_details": None,
            "dp_rank": None,
            "e2e_latency": now_s - flight.received_s,
            "request_received_ts": flight.received_s,
        }
        begun_s, queued_s = job.prefill_start_s, job.queued_s
        if flight.kind is Kind.DECODE:
            begun_s, queued_s = job.first_token_s, flight.arrived_s
        if begun_s == begun_s:  # not NaN
            meta["queue_time"] = (begun_s - queued_s) / scale
            meta["forward_entry_time"] = self._pump.wall_s(begun_s)
        if job.prefill_end_s == job.prefill_end_s:
            meta["prefill_finished_time"] = self._pump.wall_s(job.prefill_end_s)
        first_s = job.prefill_end_s if flight.kind is Kind.PREFILL else job.first_token_s
        if first_s == first_s:
            meta["first_token_latency"] = self._pump.wall_s(first_s) - flight.received_s
        if flight.ended:
            meta["request_finished_ts"] = meta["response_sent_to_client_ts"] = now_s
        return meta


def failed(failure: Failure) -> bytes:
    """A failure before the first token, as the body of an answer with its status."""
    kind = "BadRequest" if failure.status < 500 else "InternalServerError"
    told = {"object": "error", "message": failure.message, "type": kind, "param": None}
    return _encode({**told, "code": failure.status})


def _reason(flight: Flight) -> dict[str, Any]:
    """SGLang's finish reason of /generate."""
    if flight.failure is not None:
        told = {"type": "abort", "message": flight.failure.message}
        return {**told, "status_code": flight.failure.status or None, "err_type": None}
    if flight.kind is Kind.PREFILL:
        return {"type": "length", "length": 0}
    if flight.asked.stops:
        return {"type": "stop", "matched": STOP_ID}
    return {"type": "length", "length": flight.tokens}


def _finish(flight: Flight) -> dict[str, Any]:
    """The same of an OpenAI choice."""
    reason = _reason(flight)
    return {"finish_reason": reason["type"], "matched_stop": reason.get("matched")}
