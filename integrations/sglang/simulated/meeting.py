"""How a decode half finds its prefill half: in this process, or over HTTP in another."""

import asyncio
from collections.abc import Callable

import aiohttp
import msgspec
from aiohttp import web

from kvferry.integrations.sglang.simulated.flight import Flight
from kvferry.integrations.sglang.simulated.identity import Identity
from kvferry.integrations.sglang.simulated.pump import Pump
from kvferry.integrations.sglang.simulated.worker import SimulatedWorker

ROOM_PATH = "/kvferry/room"


class _Ask(msgspec.Struct):
    room: int
    worker: str
    held_tokens: int = 0


class _Told(msgspec.Struct):
    cached_tokens: int = 0
    lost: str = ""


_ask, _told = msgspec.json.Decoder(_Ask).decode, msgspec.json.Decoder(_Told).decode


class _Near:
    """A decode half of this process. What it is told, it hears as an event of its own: its engine may be
    the one that asks."""

    __slots__ = ("_decode", "_flight", "held_tokens", "worker")

    def __init__(self, decode: SimulatedWorker, flight: Flight) -> None:
        self._decode, self._flight = decode, flight
        self.worker = decode.engine.spec.id
        self.held_tokens = flight.job.cached_tokens

    def moved(self, cached_tokens: int) -> None:
        events = self._decode.pump.events
        events.at(events.now_s, self._decode.arrived, self._flight, cached_tokens)

    def lost(self, why: str) -> None:
        events = self._decode.pump.events
        events.at(events.now_s, self._decode.lost, self._flight, why)


class _Far:
    """A decode half of another process, which waits for the answer to its request."""

    __slots__ = ("answer", "held_tokens", "worker")

    def __init__(self, worker: str, held_tokens: int) -> None:
        self.worker, self.held_tokens = worker, held_tokens
        self.answer: asyncio.Future[_Told] = asyncio.get_running_loop().create_future()

    def moved(self, cached_tokens: int) -> None:
        self._tell(_Told(cached_tokens))

    def lost(self, why: str) -> None:
        self._tell(_Told(lost=why))

    def _tell(self, told: _Told) -> None:
        if not self.answer.done():
            self.answer.set_result(told)


class Meeting:
    """`near`: prefill workers of this process by their bootstrap port; `here`: names of this host."""

    def __init__(self, here: frozenset[str]) -> None:
        self.near: dict[int, SimulatedWorker] = {}
        self._here = here
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def meet(self, decode: SimulatedWorker, flight: Flight) -> Callable[[str], None]:
        """See `worker.Meet`."""
        (host, port), room = flight.address, flight.asked.room
        assert room is not None
        prefill = self.near.get(port) if host in self._here else None
        if prefill is None:
            task = asyncio.create_task(self._ask(decode, flight, f"http://{host}:{port}{ROOM_PATH}", room))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return lambda _: _cancel(task)
        taker, rooms = _Near(decode, flight), prefill.rooms
        try:
            rooms.take(room, taker)
        except KeyError:
            taker.lost(f"KVTransferError(bootstrap_room={room}): the room is taken")
        return lambda why: rooms.withdraw(room, taker, f"KVTransferError: {why} at the decode worker")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _ask(self, decode: SimulatedWorker, flight: Flight, url: str, room: int) -> None:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        body = msgspec.json.encode(_Ask(room, decode.engine.spec.id, flight.job.cached_tokens))
        try:
            async with self._session.post(url, data=body) as answer:
                raw = await answer.read()
                told = _told(raw) if answer.status == 200 else _Told(lost=f"{url} answered {answer.status}")
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
            told = _Told(lost=f"{url}: {error or type(error).__name__}")
        with decode.pump:
            if told.lost:
                why = told.lost if "KVTransferError" in told.lost else f"KVTransferError: {told.lost}"
                decode.lost(flight, why)
            else:
                decode.arrived(flight, told.cached_tokens)


def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()


def make_bootstrap_app(worker: SimulatedWorker, identity: Identity) -> web.Application:
    """The bootstrap server of a prefill worker, and the door for decode halves of other processes."""
    pump: Pump = worker.pump

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def route(_: web.Request) -> web.Response:
        return web.json_response(identity.route())

    async def room(request: web.Request) -> web.Response:
        try:
            asked = _ask(await request.read())
        except msgspec.DecodeError as error:
            raise web.HTTPBadRequest(text=f"invalid body: {error}") from error
        taker = _Far(asked.worker, asked.held_tokens)
        try:
            with pump:
                worker.rooms.take(asked.room, taker)
        except KeyError:
            raise web.HTTPConflict(text="the room is taken") from None
        try:
            told = await taker.answer
        except asyncio.CancelledError:
            with pump:
                worker.rooms.withdraw(asked.room, taker, "KVTransferError: the decode worker has given up")
            raise
        return web.Response(body=msgspec.json.encode(told), content_type="application/json")

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/route", route)
    app.router.add_post(ROOM_PATH, room)
    return app
