"""One request on one worker (a leg), or on a prefill and a decode worker at once (two legs)."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from kvferry.integrations.sglang.fleet import Fleet, Member
from kvferry.integrations.sglang.leg import Answer, Call, LegFailed
from kvferry.integrations.sglang.stream_error import error_body, stream_error

log = logging.getLogger("kvferry.legs")

CONNECT_TIMEOUT_S = 3.0
# A worker that has not registered the request yet ignores an abort: ask again until it must have.
ABORT_AFTER_S = (0.0, 0.25, 0.75, 1.5)
SETTLE_S = 5.0
MAX_FIRST_BYTES = 1 << 16
EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
PATH_MARKS = (b"KVTransferError", b" failed for request rank=")
# A decode worker whose plugin does not take this request, or takes none any more (SGLang's own words).
LOCAL_MARKS = (b"local prefill does not do", b"without bootstrap room id")


@dataclass(slots=True, eq=False)
class Legs:
    """Sends legs to workers; whatever does not end well is aborted on the workers."""

    session: aiohttp.ClientSession
    fleet: Fleet
    _background: set[asyncio.Task[Any]] = field(default_factory=set)

    async def colocated(self, call: Call, deadline_s: float) -> Answer:
        """First bytes (stream) or whole answer. LegFailed when refused, failed, or past the deadline."""
        task = self._start(call, self._open(call))
        try:
            done, _ = await asyncio.wait({task}, timeout=deadline_s)
            if not done:
                raise LegFailed(call.worker, f"no first byte within {deadline_s:.1f} s", status=504)
            return self._result(task, call)
        except BaseException:
            self._give_up(task, call)
            raise

    async def split(
        self, prefill: Call, decode: Call, deadline_s: float, on_prefilled: Callable[[], None]
    ) -> Answer:
        """Both legs at once; the decode worker's answer. A failed half ends the other one too."""
        first = self._start(prefill, self._whole(prefill))
        second = self._start(decode, self._open(decode))
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        try:
            waiting = {first, second}
            while second in waiting:
                done, waiting = await asyncio.wait(
                    waiting,
                    timeout=max(0.0, end - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:
                    late = decode.worker if first not in waiting else prefill.worker
                    raise LegFailed(late, f"no first byte within {deadline_s:.1f} s", status=504, path=True)
                if first in done:
                    self._result(first, prefill)
                    on_prefilled()
            answer = self._result(second, decode)
            answer.prefill, answer.prefill_call = first, prefill
            return answer
        except BaseException:
            self._give_up(first, prefill)
            self._give_up(second, decode)
            raise

    def abort(self, call: Call) -> None:
        """Tell the worker to drop a request, in the background."""
        if self.fleet.members[call.worker].worker.healthy:
            self._spawn(self._abort(call))

    def drop(self, answer: Answer, call: Call) -> None:
        """Nobody waits for the rest of this answer."""
        answer.response.close()
        self.abort(call)
        if answer.prefill is not None and answer.prefill_call is not None and not answer.prefill.done():
            self._give_up(answer.prefill, answer.prefill_call)

    def settle(self, answer: Answer) -> None:
        """The client is served: a prefill answer that still does not end is given up after a while."""
        if answer.prefill is not None and answer.prefill_call is not None and not answer.prefill.done():
            self._spawn(self._settle(answer.prefill, answer.prefill_call))

    async def _settle(self, task: "asyncio.Task[Answer]", call: Call) -> None:
        await asyncio.wait({task}, timeout=SETTLE_S)
        if not task.done():
            self._give_up(task, call)

    async def close(self) -> None:
        """Let the aborts in flight finish."""
        if self._background:
            await asyncio.wait(self._background, timeout=max(ABORT_AFTER_S) + 1.0)

    def watched(self, worker: str, on_down: Callable[[], object]) -> "Watch":
        """A context in which `on_down` is called if the worker goes down."""
        return Watch(self.fleet.members[worker], on_down)

    def _start(self, call: Call, leg: Coroutine[Any, Any, Answer]) -> "asyncio.Task[Answer]":
        task = asyncio.create_task(leg)
        member = self.fleet.members[call.worker]
        cancel = task.cancel
        member.watchers.add(cancel)
        task.add_done_callback(lambda _: member.watchers.discard(cancel))
        task.add_done_callback(_seen)
        return task

    def _result(self, task: "asyncio.Task[Answer]", call: Call) -> Answer:
        if task.cancelled():
            why = self.fleet.members[call.worker].why_down
            raise LegFailed(call.worker, f"worker is down: {why}", worker_down=True)
        return task.result()

    def _give_up(self, task: "asyncio.Task[Answer]", call: Call) -> None:
        if not task.done():
            task.cancel()
        elif not task.cancelled() and task.exception() is None:
            task.result().response.close()
        elif not task.cancelled():
            return  # it failed by itself: the worker has nothing left to abort
        self.abort(call)

    async def _open(self, call: Call) -> Answer:
        response = await self._post(call)
        try:
            if call.stream:
                first = await _first_event(response)
                if not first:
                    raise LegFailed(call.worker, "stream ended before its first byte", worker_down=True)
                failed = stream_error(first)
                if failed:
                    raise self._failure(call, failed[0], first, failed[1])
            else:
                first = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            response.close()
            raise LegFailed(call.worker, f"connection lost: {_why(error)}", worker_down=True) from error
        except BaseException:
            response.close()
            raise
        return Answer(call.worker, response.status, response.headers, first, response)

    async def _whole(self, call: Call) -> Answer:
        answer = await self._open(call)
        if call.stream:
            try:
                answer.first += await answer.response.read()
            except (aiohttp.ClientError, OSError) as error:
                raise LegFailed(call.worker, f"connection lost: {_why(error)}", worker_down=True) from error
            failed = stream_error(answer.first)
            if failed:
                raise self._failure(call, failed[0], answer.first, failed[1])
        return answer

    async def _post(self, call: Call) -> aiohttp.ClientResponse:
        url = self.fleet.members[call.worker].worker.url + call.path
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        try:
            response = await self.session.post(url, data=call.body, headers=call.headers, timeout=timeout)
        except (aiohttp.ClientError, OSError) as error:
            refused = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            raise LegFailed(
                call.worker, f"connection failed: {_why(error)}", worker_down=True, refused=refused
            ) from error
        if response.status >= 400:
            with suppress(aiohttp.ClientError, OSError):  # the status is known; its text is a courtesy
                body = await response.read()
                raise self._failure(
                    call, response.status, body, body.decode(errors="replace"), response.headers
                )
            raise LegFailed(call.worker, f"answered {response.status}", status=response.status)
        return response

    def _failure(
        self, call: Call, status: int, body: bytes, message: str, headers: Mapping[str, str] | None = None
    ) -> LegFailed:
        """What the client is told is the worker's own words; what is logged is not: SGLang's errors may
        quote the prompt."""
        path = status >= 500 and any(mark in body for mark in PATH_MARKS)
        elsewhere = status == 400 and any(mark in body for mark in LOCAL_MARKS)
        return LegFailed(
            call.worker,
            f"answered {status}: the KV move failed" if path else f"answered {status}",
            status=status,
            body=body if headers else error_body(status, message),
            headers=headers or {"Content-Type": "application/json"},
            path=path,
            elsewhere=elsewhere,
        )

    async def _abort(self, call: Call) -> None:
        url = self.fleet.members[call.worker].worker.url + "/abort_request"
        timeout = aiohttp.ClientTimeout(total=CONNECT_TIMEOUT_S)
        before = 0.0
        for after in ABORT_AFTER_S:
            await asyncio.sleep(after - before)
            before = after
            for rid in call.rids:
                try:
                    async with self.session.post(
                        url, json={"rid": rid}, timeout=timeout, headers=_auth(call.headers)
                    ) as answer:
                        await answer.read()
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    log.debug("abort of %s on %s: %s", rid, call.worker, _why(error))
                    return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


@dataclass(slots=True)
class Watch:
    """See Legs.watched."""

    member: Member
    on_down: Callable[[], object]

    def __enter__(self) -> "Watch":
        self.member.watchers.add(self.on_down)
        return self

    def __exit__(self, *_: object) -> None:
        self.member.watchers.discard(self.on_down)


async def _first_event(response: aiohttp.ClientResponse) -> bytes:
    """A stream's beginning up to the end of an event: only a whole one shows whether it is an error."""
    first = b""
    while chunk := await response.content.readany():
        first += chunk
        if any(end in first for end in EVENT_ENDS) or len(first) > MAX_FIRST_BYTES:
            break
    return first


def _auth(headers: Mapping[str, str]) -> dict[str, str]:
    return {"Authorization": headers["Authorization"]} if "Authorization" in headers else {}


def _seen(task: "asyncio.Task[Answer]") -> None:
    """A leg may fail when nobody needs it any more: asyncio is not to report that as forgotten."""
    if not task.cancelled():
        task.exception()


def _why(error: BaseException) -> str:
    """An error of the connection in its own words; one of HTTP, which may quote an answer, by its name."""
    own = isinstance(error, OSError | aiohttp.ServerDisconnectedError) and str(error)
    return str(error) if own else type(error).__name__
