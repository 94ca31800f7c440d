"""The source side of KV moves between processes: what a prefill worker holds to send what it computed."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from kvferry.integrations.handoff.costs import LearnedCost, start_of
from kvferry.integrations.handoff.departure import Departure
from kvferry.integrations.handoff.errand import KVErrand
from kvferry.integrations.handoff.gate import LayerGate
from kvferry.integrations.handoff.messages import VERSION, Hello
from kvferry.integrations.handoff.own import Own
from kvferry.integrations.handoff.peering import Peering, open_peering
from kvferry.integrations.handoff.record import HandoffRecord
from kvferry.integrations.handoff.scales import Scales
from kvferry.integrations.sglang.breaker import Breakers
from kvferry.integrations.transports.base import Transport
from kvferry.integrations.transports.errors import Refused, TransportError
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.choose import Form, PathCost
from kvferry.models.moves.place import Place
from kvferry.models.moves.pool_spec import PoolSpec

__all__ = ["SLOT_BYTES", "Source"]

log = logging.getLogger(__name__)

SLOT_BYTES = 32 * 2**20
CONNECT_S = 10.0
# A departure that nobody waits for.
LIMIT_S = 120.0
# Of its threads, when the source is closed; moves that the transport does not let go of take no longer.
CLOSE_S = 5.0


class Source:
    """Sends sequences' KV out of the pools of a worker's ranks that this process has.

    `worker` are the pools of all ranks, `pools` those that are here, by rank. `transport` must have no
    regions yet and is the source's from here on, closed with it: the pools' regions are registered in the
    order of their ranks, then the staging memory (`slots` slots of `slot_bytes` bytes, rounded up to 64).
    `agent` is what destinations, paths and records call this process. `costs` is what a path is believed
    to cost before moves over it were seen (the transport's own figures where not given); every move that
    is done corrects it. `on_record` are called with the record of every move that is done, before whoever
    waits for it knows, and must be quick.

    A path whose moves failed is refused for a while (`Breakers`): at first 2 s, then one move may try it.
    Methods may be called from any thread.
    """

    def __init__(
        self,
        transport: Transport,
        worker: Sequence[PoolSpec],
        pools: Mapping[int, KVPool],
        *,
        agent: str = "source",
        slots: int = 2,
        slot_bytes: int = SLOT_BYTES,
        costs: PathCost | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError where pools and worker do not fit, and `Refused` as `Transport.register`."""
        self.agent = agent
        self.on_record: list[Callable[[HandoffRecord], None]] = []
        self._own = Own(worker, pools, slots, slot_bytes)
        self._transport = transport
        self._start = start_of(transport.name) if costs is None else costs
        self._lock = threading.Lock()
        self._breakers = Breakers(clock)
        self._costs: dict[str, LearnedCost] = {}
        self._peerings: dict[str, Peering] = {}
        self._connecting: set[str] = set()
        self._departures: set[Departure] = set()
        self._closed = False
        transport.register(self._own.regions)

    def connect(self, name: str, host: str, port: int, timeout_s: float = CONNECT_S) -> Peering:
        """Meet a destination process, whose moves are then planned and sent by this `Peering`.

        A known name means that the process restarted: its old peering is closed. Raises `PeerGone`,
        `DeadlinePassed`, `Refused`, and `Impossible` where the two layouts allow no move.
        """
        with self._lock:
            self._open()
            if name in self._connecting:
                # The transport would put the second one in place of the first.
                raise Refused(f"{name} is being connected to already")
            self._connecting.add(name)
            old = self._peerings.pop(name, None)
        try:
            if old is not None:
                old.close("it was connected to anew")
            hello = Hello(VERSION, self.agent, self._own.worker, tuple(self._own.pools))
            peering = open_peering(name, host, port, self._transport, hello, timeout_s)
            with self._lock:
                if not self._closed:
                    # What failed was the process before it.
                    self._breakers.succeeded(self._path(name))
                    self._peerings[name] = peering
                    return peering
        finally:
            with self._lock:
                self._connecting.discard(name)
        peering.close("the source was closed")
        raise Refused(f"{name}: the source was closed meanwhile")

    def send(
        self,
        peering: Peering,
        room: int,
        at: Place,
        tokens: int,
        *,
        verify: bool = False,
        form: Form | None = None,
        gate: LayerGate | None = None,
        scales: Scales | None = None,
        limit_s: float = LIMIT_S,
    ) -> Departure:
        """Start to send `tokens` tokens at `at` to where `room` is expected; returns at once.

        Only what this process has for ranks at `peering` goes. `verify` asks for checksums of every page;
        `form` overrides the choice by predicted cost; `gate` says which layers are computed (without one
        all are, or are queued on the calling thread's CUDA stream); `scales` are those of fp8 pools here,
        by rank (1 where not given). The pages must stay as they are until the departure is over, which is
        after at most `limit_s` seconds. Raises `Refused` while the path is left alone, `PeerGone`, and
        `Impossible` for a place outside the pools.
        """
        if tokens < 1:
            raise ValueError(f"{tokens} tokens are no move")
        at.check(self._own.worker[0], tokens, "source", written=False)
        if gate is None:
            self._own.synchronise()
        path = self._path(peering.name)
        with self._lock:
            self._open()
            if (reason := self._breakers.open().get(path)) is not None:
                raise Refused(f"{path} is left alone for a while: {reason}")
            self._breakers.tried(path)
            self._departures = {each for each in self._departures if not each.join(0.0)}
            cost = self._costs.setdefault(peering.name, LearnedCost(self._start))
        errand = KVErrand(
            own=self._own,
            src=self.agent,
            transport=self._transport.name,
            room=room,
            at=at,
            tokens=tokens,
            verify=verify,
            form=form,
            gate=gate,
            scales={} if scales is None else scales,
            cost=lambda: self._believed(cost),
            told=lambda outcome, blamed: self._ended(path, cost, outcome, blamed),
        )
        departure = Departure(peering, self._transport, errand, limit_s)
        with self._lock:
            self._departures.add(departure)
        return departure

    def cost(self, name: str) -> PathCost:
        """What moves to a destination are believed to cost now."""
        with self._lock:
            learned = self._costs.get(name)
            return self._start if learned is None else learned.cost

    def close(self) -> None:
        """Give up what is under way; end threads, sockets and the transport. Again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            peerings, departures = tuple(self._peerings.values()), tuple(self._departures)
            self._peerings.clear()
        for peering in peerings:
            peering.close("the source was closed")
        until_s = time.monotonic() + CLOSE_S
        for departure in departures:
            if not departure.join(max(0.0, until_s - time.monotonic())):
                log.warning("a departure to %s still runs at close", departure.peering.name)
        self._transport.close()

    def _believed(self, cost: LearnedCost) -> PathCost:
        with self._lock:
            return cost.cost

    def _ended(
        self, path: str, cost: LearnedCost, outcome: HandoffRecord | TransportError, blamed: bool
    ) -> None:
        if not isinstance(outcome, HandoffRecord):
            if blamed:
                with self._lock:
                    self._breakers.failed(path, str(outcome))
            return
        with self._lock:
            self._breakers.succeeded(path)
            cost.learn(outcome)
        for told in self.on_record:
            try:
                told(outcome)
            except Exception:
                # Who learns from moves must not undo one that is done.
                log.exception("a listener of %s's records", self.agent)

    def _path(self, name: str) -> str:
        return f"{self.agent}>{name}@{self._transport.name}"

    def _open(self) -> None:
        if self._closed:
            raise Refused("this source is closed")
