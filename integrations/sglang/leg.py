"""What is asked of one worker, what comes back, and how it fails."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

RETRIED_STATUS = frozenset((408, 429, 500, 502, 503, 504))


class LegFailed(Exception):
    """A leg ended before its first byte. `worker_down`: the worker itself is in doubt (`refused`: it takes
    no connection); `path`: the KV move is; neither: the worker answered this request with an error, which
    another might not (`elsewhere`: it was asked for what it cannot do)."""

    def __init__(
        self,
        worker: str,
        message: str,
        *,
        status: int = 502,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        worker_down: bool = False,
        refused: bool = False,
        path: bool = False,
        elsewhere: bool = False,
    ) -> None:
        super().__init__(f"{worker}: {message}")
        self.worker = worker
        self.message = message
        self.status = status
        self.body = body
        self.headers = dict(headers or {})
        self.worker_down = worker_down or refused
        self.refused = refused
        self.path = path
        self.elsewhere = elsewhere

    @property
    def retry(self) -> bool:
        return self.worker_down or self.path or self.elsewhere or self.status in RETRIED_STATUS


@dataclass(slots=True, eq=False)
class Answer:
    """`first` is the whole body, or the first bytes of a stream whose rest is in `response`.

    `prefill` is the prefill worker's own answer, once it is there, and `prefill_call` what was asked of it
    (split only).
    """

    worker: str
    status: int
    headers: Mapping[str, str]
    first: bytes
    response: aiohttp.ClientResponse
    prefill: "asyncio.Task[Answer] | None" = None
    prefill_call: "Call | None" = None


@dataclass(frozen=True, slots=True)
class Call:
    """What a leg sends: path, body and headers, and the ids by which the worker can abort it."""

    worker: str
    path: str
    body: bytes
    rids: list[str]
    headers: Mapping[str, str]
    stream: bool
