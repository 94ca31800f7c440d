"""A worker that answers as SGLang does, and fails as it is told to."""

import asyncio
import copy
import json
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

from aiohttp import ClientConnectionError, web

GOLDEN = Path(__file__).parent / "golden"
MODEL = "Qwen3-8B"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def states(role: str, instance: str, **features: Any) -> list[Any]:
    """/server_info's internal states of a worker with the plugin."""
    told = {"telemetry": {"on": True}, **features}
    (state,) = golden(f"{role}_server_info")["internal_states"]
    return [{**state, "kvferry": {"version": "1.2", "instance": instance, "features": told}}]


@dataclass
class Act:
    """How one request is answered. `after` counts the events that come before the trouble.

    trouble: "" (none), "reset" (the connection is cut), "hang", "error" (an error event in a 200
    stream), "abort" (an event whose finish reason is an abort with `status`), "end" (ends early).
    """

    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    trouble: str = ""
    after: int = 0
    chunk_bytes: int = 0
    gap_s: float = 0.0
    cached_tokens: int = 0
    alone: bool = False


@dataclass
class Seen:
    path: str
    headers: Any
    raw: bytes
    json: dict[str, Any]


class Rooms:
    """Where the halves of a split find each other: one event per (room, side)."""

    def __init__(self) -> None:
        self.met: defaultdict[tuple[Any, str], asyncio.Event] = defaultdict(asyncio.Event)

    async def join(self, room: Any, side: str) -> None:
        other = "decode" if side == "prefill" else "prefill"
        self.met[room, side].set()
        await self.met[room, other].wait()


class FakeWorker:
    """`acts` are used up in order, then `act` answers everything. `seen`, `aborts`: what arrived."""

    def __init__(self, role: str = "colocated", rooms: Rooms | None = None, **info: Any) -> None:
        self.role = role
        self.rooms = rooms or Rooms()
        self.info = {**golden(f"{role}_server_info"), "served_model_name": MODEL, "model_path": MODEL, **info}
        self.info.setdefault("disaggregation_bootstrap_port", 8998)
        self.loads = golden(f"{role}_loads")
        for rank in self.loads["loads"]:
            quiet(rank)
        self.act = Act()
        self.acts: deque[Act] = deque()
        self.tokens = 4
        self.healthy = True
        self.stale_s = 0.0
        self.answer_loads: Callable[[], web.Response] | None = None
        self.seen: list[Seen] = []
        self.aborts: list[str] = []
        self.cancelled = 0
        self.running = 0
        self.polls = 0
        self._port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> "FakeWorker":
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_get("/health", self._health)
        app.router.add_post("/abort_request", self._abort)
        for path in ("/generate", "/v1/chat/completions", "/v1/completions"):
            app.router.add_post(path, self._run)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def kill(self) -> None:
        """As SIGKILL does: every connection is cut, and new ones are refused."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        for site in list(runner.sites):
            await site.stop()
        server = runner.server
        for connection in list(server.connections) if server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    async def _server_info(self, _: web.Request) -> web.Response:
        return web.json_response(self.info)

    async def _loads(self, _: web.Request) -> web.Response:
        self.polls += 1
        if self.answer_loads is not None:
            return self.answer_loads()
        answer = copy.deepcopy(self.loads)
        answer["timestamp"] = datetime.now(UTC).isoformat()
        for rank in answer["loads"]:
            rank["timestamp"] = time() - self.stale_s
        return web.json_response(answer)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborts.append((await request.json())["rid"])
        return web.Response()

    async def _run(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        self.seen.append(Seen(request.path, request.headers.copy(), raw, body))
        act = self.acts.popleft() if self.acts else self.act
        self.running += 1
        try:
            return await self._answer(request, body, act)
        except (ConnectionError, ClientConnectionError):
            return web.Response()  # goes nowhere
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any], act: Act) -> web.StreamResponse:
        await asyncio.sleep(act.delay_s)
        stream = bool(body.get("stream"))
        if act.status >= 400 and not act.trouble:
            told = act.body if act.body is not None else b'{"error": {"message": "told to fail"}}'
            return web.Response(
                status=act.status, body=told, headers={"Content-Type": "application/json", **act.headers}
            )
        if (act.trouble in ("reset", "hang") and not act.after) or (act.trouble == "reset" and not stream):
            return await self._misbehave(request, act)
        split = body.get("bootstrap_room") is not None
        if self.role != "colocated" and not split:
            told = "Invalid request: Disaggregated request received without bootstrap room id. req.rid='x'"
            return web.json_response({"error": {"message": told}}, status=400)
        if split and not act.alone and not (act.trouble and not act.after):
            await self.rooms.join(body["bootstrap_room"], self.role)
        events = [act.body] if act.body is not None else self.events(request.path, body, act)
        if not stream:
            whole = act.body if act.body is not None else self.whole(request.path, body, act)
            return web.Response(body=whole, headers={"Content-Type": "application/json", **act.headers})
        headers = {"Content-Type": "text/event-stream; charset=utf-8", **act.headers}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for place, event in enumerate(events):
            if act.trouble and place == act.after:
                return await self._in_stream(request, response, act)
            await self._tell(response, event, act)
            if act.gap_s:
                await asyncio.sleep(act.gap_s)
        await response.write_eof()
        return response

    async def _tell(self, response: web.StreamResponse, event: bytes, act: Act) -> None:
        for piece in pieces(event, act.chunk_bytes):
            await response.write(piece)
            if act.chunk_bytes:
                await asyncio.sleep(0.0005)

    async def _in_stream(
        self, request: web.Request, response: web.StreamResponse, act: Act
    ) -> web.StreamResponse:
        if act.trouble == "error":
            told = {"object": "error", "message": "KVTransferError: timed out", "code": act.status}
            event = b'data: {"error": ' + json.dumps(told).encode() + b"}\n\ndata: [DONE]\n\n"
            await self._tell(response, event, act)
        elif act.trouble == "abort":
            finish = {"type": "abort", "message": "KVTransferError: timed out", "status_code": act.status}
            event = {"text": "", "output_ids": [], "meta_info": {"id": "x", "finish_reason": finish}}
            text = json.dumps(event, separators=(",", ":"))
            await self._tell(response, f"data: {text}\n\ndata: [DONE]\n\n".encode(), act)
        elif act.trouble != "end":
            await self._misbehave(request, act)
        await response.write_eof()
        return response

    async def _misbehave(self, request: web.Request, act: Act) -> web.StreamResponse:
        if act.trouble == "hang":
            await asyncio.sleep(3600)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    def whole(self, path: str, body: dict[str, Any], act: Act) -> bytes:
        if path != "/generate":
            return json.dumps(openai_answer(path, body, self.tokens, act.cached_tokens)).encode()
        metas = [self._meta(body, rid, act) for rid in rids_of(body)]
        answers = [{"text": f"from {self.role}", "output_ids": [1], "meta_info": meta} for meta in metas]
        return json.dumps(answers if isinstance(body.get("text", ""), list) else answers[0]).encode()

    def events(self, path: str, body: dict[str, Any], act: Act) -> list[bytes]:
        made: list[Any] = []
        for place in range(1, self.tokens + 1):
            if path == "/generate":
                meta = {**self._meta(body, body.get("rid"), act), "completion_tokens": place}
                made.append({"text": "é " * place, "output_ids": [place], "meta_info": meta})
            elif path == "/v1/completions":
                made.append({"choices": [{"index": 0, "text": "é"}]})
            else:
                made.append({"choices": [{"index": 0, "delta": {"content": "é"}}]})
        lines = [
            f"data: {json.dumps(event, separators=(',', ':'), ensure_ascii=False)}\n\n".encode()
            for event in made
        ]
        return [*lines, b"data: [DONE]\n\n"]

    def _meta(self, body: dict[str, Any], rid: Any, act: Act) -> dict[str, Any]:
        meta = copy.deepcopy(golden("generate_answers")[self.role]["meta_info"])
        prompt = len(body["input_ids"]) if "input_ids" in body else len(str(body.get("text"))) // 4
        meta |= {"id": rid, "prompt_tokens": prompt, "cached_tokens": act.cached_tokens}
        if body.get("return_logprob") and self.role != "decode":
            meta["input_token_logprobs"] = [[-0.5, 7, None]]
        return meta


def quiet(rank: dict[str, Any]) -> None:
    """A load without any work, and without counters of past work."""
    for name in ("num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_used_tokens"):
        rank[name] = 0
    rank |= {"num_total_tokens": 0, "num_active_tokens": 0, "num_prealloc_ready_tokens": 0}
    rank |= {"total_prefill_uncached_tokens": 0, "total_prefill_busy_us": 0, "decode_moments": None}


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)] if size else [data]


def rids_of(body: dict[str, Any]) -> list[Any]:
    text = body.get("text", "")
    if not isinstance(text, list):
        return [body.get("rid")]
    rid = body.get("rid")
    return rid if isinstance(rid, list) else [f"{rid}_{place}" for place in range(len(text))]


def openai_answer(path: str, body: dict[str, Any], tokens: int, cached: int) -> dict[str, Any]:
    usage = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
    text = (
        {"text": "hi"} if path == "/v1/completions" else {"message": {"role": "assistant", "content": "hi"}}
    )
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    return {
        "id": "x",
        "model": body.get("model"),
        "choices": [{"index": 0, **text}],
        "usage": usage | details,
    }
