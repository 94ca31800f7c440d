"""One sequence in flight on one simulated worker, and the handler that waits for it."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from kvferry.integrations.sglang.plugin.wire import Transfer
from kvferry.integrations.sglang.simulated.asked import Sequence as Asked
from kvferry.models.simulator.job import Job


class Kind(Enum):
    """What the worker does of it: everything, or one half."""

    WHOLE = "whole"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no (more) answer. Status 0: it was aborted on request."""

    status: int
    message: str


class Inbox:
    """Flights of one request that have news, in the order in which they came."""

    __slots__ = ("_news", "_waiter")

    def __init__(self) -> None:
        self._news: dict[Flight, None] = {}
        self._waiter: asyncio.Future[None] | None = None

    def tell(self, flight: "Flight") -> None:
        self._news[flight] = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def any(self) -> bool:
        return bool(self._news)

    async def news(self) -> list["Flight"]:
        """At least one flight."""
        if not self._news:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        told, self._news = self._news, {}
        return list(told)

    async def ended(self, flights: Sequence["Flight"]) -> None:
        """Until all of them have ended."""
        while not all(flight.ended for flight in flights):
            await self.news()


@dataclass(slots=True, eq=False)
class Flight:
    """`tokens`: output tokens that are out. `received_s`: Unix seconds; `taken_s` (the same moment),
    `granted_s` (a decode worker has set KV room aside) and `arrived_s` (its KV is there): simulated ones.
    `address`: where the bootstrap server of its prefill worker is; `found_tokens`: what that worker had in
    its cache, known on the decode worker. `transfer`: what a prefill worker has moved. `on_end` is called
    once."""

    asked: Asked
    kind: Kind
    job: Job
    inbox: Inbox
    stream: bool
    received_s: float
    taken_s: float
    address: tuple[str, int] = ("", 0)
    found_tokens: int | None = None
    tokens: int = 0
    ended: bool = False
    failure: Failure | None = None
    granted_s: float = math.nan
    arrived_s: float = math.nan
    transfer: Transfer | None = None
    on_end: "Callable[[Flight], None] | None" = None

    @property
    def cached_tokens(self) -> int:
        """As answers tell: a decode worker repeats what the prefill worker has found."""
        return self.job.cached_tokens if self.found_tokens is None else self.found_tokens

    def advance(self, tokens: int) -> None:
        """So many tokens are out by now."""
        if tokens > self.tokens:
            self.tokens = tokens
            if self.stream:
                self.inbox.tell(self)

    def end(self, failure: Failure | None = None) -> None:
        """Nothing more will come."""
        self.ended, self.failure = True, failure
        if self.on_end is not None:
            self.on_end(self)
        self.inbox.tell(self)
