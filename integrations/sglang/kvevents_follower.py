"""A task that follows one rank's KV events over ZeroMQ and asks again for what was lost."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
import zmq
import zmq.asyncio

from kvferry.integrations.sglang.kvevents_feed import Feed, Step
from kvferry.integrations.sglang.kvevents_message import Batch, decode
from kvferry.integrations.sglang.kvevents_source import Source

log = logging.getLogger("kvferry.kvevents")

# A message lost with nothing after it shows only to one who asks: soon after the start, for a subscription
# takes its time, then every IDLE_S without a message, or while something older may still be had.
FIRST_IDLE_S = 0.25
IDLE_S = 5.0
REPLAY_S = 3.0
ODD_S = 1.0
QUEUED = 200_000
HEARTBEAT_MS = 5000
SEQ_BYTES = 8
END = (-1).to_bytes(SEQ_BYTES, "big", signed=True)


@dataclass(slots=True, eq=False)
class Follower:
    """`whose` names the rank in the log; `clock` is Unix time, which is compared with the worker's."""

    whose: str
    source: Source
    feed: Feed
    context: zmq.asyncio.Context
    clock: Callable[[], float] = time.time
    catching_up: bool = False
    _unanswered: bool = True
    _asked_s: float = 0.0
    _wait_s: float = FIRST_IDLE_S
    _told: str = field(default="?")
    _told_error: str = field(default="")

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            socket = self._socket(zmq.SUB, self.source.events)
            socket.setsockopt(zmq.SUBSCRIBE, self.source.topic)
            try:
                await self._follow(socket)
            except Exception as error:  # noqa: BLE001 - told; begun anew, and until then history stands in
                log.warning("%s: KV events: %s: %s", self.whose, type(error).__name__, error)
                self.feed.begin()
                await asyncio.sleep(ODD_S)
            finally:
                socket.close(linger=0)

    async def _follow(self, socket: zmq.asyncio.Socket) -> None:
        await self._catch_up()
        while True:
            try:
                async with asyncio.timeout(self._wait_s):
                    frames = await socket.recv_multipart()
            except TimeoutError:
                self._wait_s = min(IDLE_S, 2 * self._wait_s)
                await self._catch_up()
            else:
                if len(frames) >= 2 and frames[0] == self.source.topic and len(frames[-2]) == SEQ_BYTES:
                    await self._live(int.from_bytes(frames[-2], "big"), self._read(frames[-1]))
                if self.feed.partial and time.monotonic() > self._asked_s + IDLE_S:
                    await self._catch_up()
            self._tell()

    async def _live(self, seq: int, batch: Batch | None) -> None:
        step = self._step(seq, batch)
        if step is Step.RESTART:
            self.feed.restart()
            step = self._step(seq, batch)
        if step is Step.GAP:
            answered = await self._catch_up()
            step = self._step(seq, batch)
            # what is lost now may be had later, with all that came before it
            self._unanswered |= step is Step.GAP and not answered
        await self._take(step, seq, batch)

    async def _take(self, step: Step, seq: int, batch: Batch | None) -> None:
        if step is Step.GAP:
            self.feed.lose(seq)
        if step in (Step.NEXT, Step.GAP):
            if batch is None:
                self.feed.spoil(seq, self.feed.last_error)
                return
            for _ in self.feed.apply(seq, batch, self.clock()):
                await asyncio.sleep(0)

    async def _catch_up(self) -> bool:
        """Ask for all since the last batch taken, that one too: it shows whether the publisher is still
        the same. From the beginning where that has not been answered yet, or the publisher is a new one.
        Returns whether there was an answer."""
        self._asked_s = time.monotonic()
        if not self.source.replay:
            return False
        try:
            begin = 0 if self._unanswered else max(0, self.feed.next_seq - 1)
            if not await self._replay(begin):
                self.feed.restart()
                await self._replay(0)
            return True
        except TimeoutError:
            log.debug("%s: no answer from %s", self.whose, self.source.replay)
            return False
        finally:
            self.catching_up = False

    async def _replay(self, begin: int) -> bool:
        """Take what is answered; false when the publisher turns out to be another one. TimeoutError."""
        feed, empty = self.feed, True
        async with aclosing(self._replayed(begin)) as replayed:
            async for seq, payload in replayed:
                if self._unanswered and empty:
                    feed.begin()
                batch = self._read(payload)
                step = self._step(seq, batch)
                if step is Step.RESTART:
                    return False
                empty = False
                self.catching_up |= step is not Step.OLD
                await self._take(step, seq, batch)
        if empty and begin:
            return False
        if empty:
            feed.begin()
        self._unanswered = False
        return True

    async def _replayed(self, begin: int) -> AsyncGenerator[tuple[int, bytes], None]:
        socket = self._socket(zmq.DEALER, self.source.replay)
        try:
            await socket.send_multipart((b"", begin.to_bytes(SEQ_BYTES, "big")))
            while True:
                async with asyncio.timeout(REPLAY_S):
                    frames = await socket.recv_multipart()
                if len(frames) < 3 or len(frames[-2]) != SEQ_BYTES or frames[-2] == END:
                    return
                yield int.from_bytes(frames[-2], "big"), frames[-1]
        finally:
            socket.close(linger=0)

    def _step(self, seq: int, batch: Batch | None) -> Step:
        return self.feed.sort(seq, batch.ts if batch else self.feed.last_ts)

    def _read(self, payload: bytes) -> Batch | None:
        try:
            return decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.feed.last_error = f"{type(error).__name__}: {error}"
            return None

    def _socket(self, kind: int, endpoint: str) -> zmq.asyncio.Socket:
        socket = self.context.socket(kind)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.RCVHWM, QUEUED),
            (zmq.IPV6, 1),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
        ):
            socket.setsockopt(option, value)
        socket.connect(endpoint)
        return socket

    def _tell(self) -> None:
        """Say once when what is known turns partial or whole, and what could not be read."""
        feed = self.feed
        if feed.undecodable and feed.last_error != self._told_error:
            self._told_error = feed.last_error
            log.warning("%s: a KV event cannot be read: %s", self.whose, feed.last_error)
        if feed.partial == self._told:
            return
        self._told = feed.partial
        if feed.partial:
            log.info("%s: KV events are followed in part: %s", self.whose, feed.partial)
        else:
            log.info("%s: KV events are followed from %s", self.whose, self.source.events)
