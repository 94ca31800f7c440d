"""Shares what routers learn: each tells its own evidence and hears that of the others, beside deciding."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Sequence

from redis.exceptions import ResponseError

from kvferry.integrations.redis.background import Background
from kvferry.integrations.redis.connection import STORE_FAILURES, Store, why
from kvferry.integrations.redis.health import Health
from kvferry.integrations.redis.learned_board import LearnedBoard, Place, Told
from kvferry.models.evidence import Evidence

_log = logging.getLogger("kvferry.learned")

MOST_ROUTERS = 256
MOST_COMPLAINTS = 4096
# A router that lives says so this often, whether it has learned something or not.
HEARTBEAT_S = 10.0
# The evidence of one that has been silent for SILENT_S halves every HALF_LIFE_S, and is dropped in the end.
SILENT_S = 60.0
HALF_LIFE_S = 1800.0
DROPPED_S = 6 * 3600.0
REFUSED_S = 5.0


class Learned(Background):
    """Every `interval_s`: `router`'s own evidence where it changed, and what others changed of theirs.

    What the router itself had told before a restart is read back before it tells anything, however late the
    store appears. While the store is away each goes on with what it has heard. Nothing in the store is
    trusted: what is too long or makes no sense is passed over, with one line in the log.
    """

    def __init__(
        self,
        store: Store,
        evidence: Sequence[Evidence],
        *,
        router: str,
        health: Health,
        interval_s: float = 1.0,
    ) -> None:
        super().__init__("learned")
        self._router, self._health, self._interval_s = router, health, interval_s
        self._board = LearnedBoard(store, self._complain)
        self._evidence = {one.name: one for one in evidence}
        self._life = secrets.token_hex(4)
        self._restored = False
        self._told: dict[Place, Told] = {}
        self._heard: dict[Place, Told] = {}
        self._complained: set[Place] = set()
        self._refused = False

    @property
    def routers(self) -> int:
        """Other routers whose evidence counts now."""
        return len({place.router for place in self._heard})

    async def close(self) -> None:
        """Stop, and leave what was learned last for the next start."""
        await self._end(timeout_s=1.0)
        with contextlib.suppress(*STORE_FAILURES):  # the store is gone: it has what was told before
            async with asyncio.timeout(1.0):
                await self.refresh()

    async def refresh(self) -> None:
        """Hear and tell everything now. Raises what redis-py raises."""
        now_s, times = await self._board.times(self._evidence)
        if not self._restored:
            await self._restore(times)
            self._restored = True
        await self._hear(now_s, times)
        await self._tell(now_s, times)

    async def _step(self) -> float | None:
        try:
            await self.refresh()
        except ResponseError as error:
            # the store is there and refuses: an ACL without these keys, or keys of another type
            if not self._refused:
                self._refused = True
                _log.error("what routers learn cannot be shared: %s", why(error))
            return REFUSED_S
        except STORE_FAILURES as error:
            self._health.failure("learned", error)
            return self._interval_s
        self._refused = False
        self._health.success("learned")
        return self._interval_s

    async def _restore(self, times: dict[Place, Told]) -> None:
        for kind, evidence in self._evidence.items():
            own = Place(kind, self._router)
            for _, data in await self._board.read(kind, [self._router] if own in times else []):
                try:
                    evidence.restore(data)
                except ValueError as error:
                    self._complain(own, str(error))

    async def _hear(self, now_s: float, times: dict[Place, Told]) -> None:
        others = {place: told for place, told in times.items() if place.router != self._router}
        gone = [place for place, told in others.items() if abs(now_s - told.at) > DROPPED_S]
        if gone:
            await self._board.drop(gone)
        counted = [place for place in others.keys() - gone if share(now_s - others[place].at) > 0.0]
        newest = sorted(counted, key=lambda place: others[place].at, reverse=True)
        heard = {place: others[place] for place in newest[: MOST_ROUTERS * len(self._evidence)]}
        changed = [place for place, told in heard.items() if not told.same(self._heard.get(place))]
        for kind, evidence in self._evidence.items():
            for router, data in await self._board.read(
                kind, [one.router for one in changed if one.kind == kind]
            ):
                try:
                    evidence.hear(router, data)
                except ValueError as error:
                    self._complain(Place(kind, router), str(error))
                else:
                    self._complained.discard(Place(kind, router))
        for place in self._heard.keys() - heard.keys():
            self._evidence[place.kind].weigh(place.router, 0.0)
        for place, told in heard.items():
            self._evidence[place.kind].weigh(place.router, share(now_s - told.at))
        self._heard = heard

    async def _tell(self, now_s: float, times: dict[Place, Told]) -> None:
        told, data = dict[Place, Told](), dict[Place, bytes]()
        for kind, evidence in self._evidence.items():
            own = Place(kind, self._router)
            now, before, there = (
                Told(now_s, self._life, evidence.revision),
                self._told.get(own),
                times.get(own),
            )
            if before is not None and there is not None and there.life != self._life:
                self._complain(own, "another router has this name, too: give each its own --name")
            if not now.same(there):
                data[own] = evidence.snapshot()
            if own in data or before is None or now_s - before.at >= HEARTBEAT_S:
                told[own] = now
        if told:
            await self._board.write(told, data)
            self._told |= told

    def _complain(self, place: Place, what: str) -> None:
        if place not in self._complained and len(self._complained) < MOST_COMPLAINTS:
            self._complained.add(place)
            _log.warning("passing over what %r has told of its %s: %s", place.router, place.kind, what)


def share(age_s: float) -> float:
    """How much evidence counts whose router was last heard of `age_s` ago: 1 down to 0, in steps."""
    if age_s <= SILENT_S:
        return 1.0
    return float(round(2.0 ** (-(age_s - SILENT_S) / HALF_LIFE_S), 2))
