"""From a worker's answer to the client: bytes as they came, an error event when the worker is lost."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import suppress

import aiohttp
from aiohttp import web

from kvferry.integrations.sglang.answer import usage_of
from kvferry.integrations.sglang.errors import ApiError, Stopping, Upstream
from kvferry.integrations.sglang.ferry import Ferry
from kvferry.integrations.sglang.leg import Answer, Call, LegFailed
from kvferry.integrations.sglang.merge import events_by_index, merged, merged_event
from kvferry.integrations.sglang.passage import Passage
from kvferry.integrations.sglang.stream_error import aborted, stream_error
from kvferry.integrations.sglang.worker_error import in_openai_shape

log = logging.getLogger("kvferry.relay")

HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
        "date",
        "server",
    )
)
TAIL_BYTES = 1 << 18
PREFILL_ANSWER_S = 30.0  # after the decode worker's first token, which comes after it


class _ClientLeftError(Exception):
    """The client's connection is gone."""


def client_headers(headers: Mapping[str, str], passage: Passage | None = None) -> dict[str, str]:
    """A worker's headers as they go to the client, with the request's id and plan."""
    kept = {
        name: value
        for name, value in headers.items()
        if name.lower() not in HOP_BY_HOP and not name.lower().startswith("x-kvferry-")
    }
    if passage is not None:
        kept["x-kvferry-id"] = passage.request.id
        if passage.decision is not None:
            kept["x-kvferry-plan"] = passage.decision.plan.key
    return kept


def failure_response(failed: LegFailed, passage: Passage) -> web.Response:
    """A worker's own error with its status, text and headers; ours where it gave none."""
    if failed.body:
        return web.Response(
            status=failed.status,
            body=in_openai_shape(failed.status, failed.body),
            headers=client_headers(failed.headers, passage),
        )
    kind = "invalid_request_error" if failed.status < 500 else "upstream_error"
    headers = {"x-kvferry-id": passage.request.id}
    return ApiError(str(failed), status=failed.status, kind=kind, headers=headers).response()


async def relay(
    ferry: Ferry, passage: Passage, answer: Answer, call: Call, request: web.Request
) -> web.StreamResponse:
    """Pass an answer on. Whatever ends it early is told to the client and aborted on the workers."""
    try:
        if passage.body.stream:
            return await _stream(ferry, passage, answer, call, request)
        return await _whole(passage, answer)
    except BaseException:
        ferry.legs.drop(answer, call)
        raise
    finally:
        ferry.legs.settle(answer)


async def _whole(passage: Passage, answer: Answer) -> web.Response:
    passage.first_byte()
    body, endpoint = answer.first, passage.body.endpoint
    await read_prefill(passage, answer, wait=passage.body.input_logprobs)
    if answer.prefill is not None and passage.body.input_logprobs:
        body = merged(endpoint, answer.prefill.result().first, body)
    passage.usage = usage_of(endpoint, body)
    passage.end_of_answer(aborted(body))
    return web.Response(status=answer.status, body=body, headers=client_headers(answer.headers, passage))


async def _stream(
    ferry: Ferry, passage: Passage, answer: Answer, call: Call, request: web.Request
) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=client_headers(answer.headers, passage))
    tail = bytearray()
    try:
        chunks = _chunks(ferry, answer)
        if answer.prefill is not None and passage.body.input_logprobs:
            chunks = _with_logprobs(passage, answer, chunks)
        await _sent(response.prepare(request))
        async for chunk in chunks:
            await _sent(response.write(chunk))
            passage.first_byte()
            passage.last_s = ferry.clock()
            passage.events += chunk.count(b"data: {")
            tail += chunk
            if len(tail) > 2 * TAIL_BYTES:
                del tail[:-TAIL_BYTES]
        await _sent(response.write_eof())
    except (_ClientLeftError, aiohttp.ClientError, LegFailed) as error:
        ferry.legs.drop(answer, call)
        if not _complete(tail):
            await _cut_short(passage, answer, response, tail, error)
            return response
    except asyncio.CancelledError:
        if _complete(tail):
            await _record(passage, answer, tail)
        if not ferry.stopping or _complete(tail):
            raise
        ferry.legs.drop(answer, call)
        await _cut_short(passage, answer, response, tail, Stopping())
        return response
    await _record(passage, answer, tail)
    return response


def _complete(tail: bytearray) -> bool:
    """Whether the last event went out: many clients leave on it, without waiting for the stream's end."""
    return tail[-24:].rstrip().endswith(b"data: [DONE]")


async def _cut_short(
    passage: Passage, answer: Answer, response: web.StreamResponse, tail: bytearray, error: Exception
) -> None:
    if isinstance(error, _ClientLeftError):
        passage.finish("cancelled", "client left")
        return
    # the client already has a part: say that the rest will not come, and send no [DONE]
    lost: ApiError = Upstream(f"{answer.worker}: connection lost while streaming ({type(error).__name__})")
    if isinstance(error, ApiError):
        lost = error
    passage.finish("failed", str(lost))
    inside = tail and not tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
    with suppress(_ClientLeftError):
        await _sent(response.write(b"\n\n" * bool(inside) + lost.event()))
        await _sent(response.write_eof())


async def _record(passage: Passage, answer: Answer, tail: bytearray) -> None:
    body = bytes(tail)
    passage.usage = usage_of(passage.body.endpoint, body, passage.body.sequences)
    await read_prefill(passage, answer, wait=False)
    told = stream_error(body)  # the client has it already, as the worker's last event
    if told is None:
        passage.end_of_answer(aborted(body))
    else:
        passage.finish("failed", f"{answer.worker}: told {told[0]} while streaming")


async def read_prefill(passage: Passage, answer: Answer, *, wait: bool) -> None:
    """Take what the prefill worker's answer tells; `wait` for it when the client needs it."""
    if answer.prefill is None:
        return
    if wait:
        await _known(answer)
    if answer.prefill.done() and not answer.prefill.cancelled() and answer.prefill.exception() is None:
        body, events = answer.prefill.result().first, passage.body.sequences if passage.body.stream else 0
        passage.prefill_usage = usage_of(passage.body.endpoint, body, events)


async def _known(answer: Answer) -> Answer:
    """The prefill worker's own answer. LegFailed when it will not come."""
    assert answer.prefill is not None
    await asyncio.wait({answer.prefill}, timeout=PREFILL_ANSWER_S)
    if not answer.prefill.done():
        raise LegFailed(answer.worker, "its prefill worker does not tell log-probabilities", status=504)
    if answer.prefill.cancelled():  # as a watcher does when the worker goes down
        raise LegFailed(answer.worker, "its prefill worker went down before it told log-probabilities")
    return answer.prefill.result()


async def _sent(writing: Awaitable[object]) -> None:
    """aiohttp tells a client that left by an error that is a worker's as well: give it a name of its own."""
    try:
        await writing
    except (ConnectionError, aiohttp.ClientConnectionError) as error:
        raise _ClientLeftError from error


async def _chunks(ferry: Ferry, answer: Answer) -> AsyncIterator[bytes]:
    yield answer.first
    with ferry.legs.watched(answer.worker, answer.response.close):
        async for chunk in answer.response.content.iter_any():
            yield chunk


async def _with_logprobs(
    passage: Passage, answer: Answer, chunks: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """Re-written events: the one case in which a stream is parsed, since only the prefill worker knows."""
    before = events_by_index(passage.body.endpoint, (await _known(answer)).first)
    rest = b""
    async for chunk in chunks:
        *events, rest = (rest + chunk).split(b"\n\n")
        if events:
            yield b"".join(merged_event(passage.body.endpoint, before, event) + b"\n\n" for event in events)
    if rest:
        yield rest
