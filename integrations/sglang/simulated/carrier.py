"""KV caches on their way out of one simulated prefill worker."""

import dataclasses
from collections.abc import Callable

from kvferry.integrations.sglang.plugin.wire import Transfer
from kvferry.models.simulator.network import Move, Nic
from kvferry.models.simulator.spec import EngineSpec
from kvferry.models.simulator.trip import Carriage
from kvferry.models.simulator.view import worker_of
from kvferry.models.simulator.world import World
from kvferry.policy.candidates import Candidates
from kvferry.policy.link import Link
from kvferry.policy.worker import Role, Worker


class Carrier:
    """Moves share the worker's NIC among themselves, and the destination's with the other moves of this
    process. A destination in another process is taken to be like this worker, with a NIC of its own: what
    reaches it from elsewhere is not seen."""

    def __init__(self, world: World, spec: EngineSpec, time_scale: float) -> None:
        self._world, self._spec, self._scale = world, spec, time_scale
        self._source = world.sends[world.index[spec.id]]
        self._ways: dict[str, tuple[Nic, Carriage]] = {}
        self._met_s: dict[str, float] = {}

    def meeting_s(self, destination: str) -> float:
        """What is left of the pair's first contact; 0 once that is over."""
        now_s = self._world.events.now_s
        if destination not in self._ways:
            self._ways[destination] = self._way(destination)
            self._met_s[destination] = now_s + self._world.path.first_contact_s
        return max(0.0, self._met_s[destination] - now_s)

    def begin(
        self, destination: str, prompt_tokens: int, held_tokens: int, done: Callable[[], None]
    ) -> "Carried":
        """A move that has nothing to send yet; the first `held_tokens` need not travel."""
        sink, carriage = self._ways[destination]
        path = self._world.path
        moved_bytes = (prompt_tokens - held_tokens) * carriage.wire_bytes
        closing_s = path.alpha_s + path.handoff_s + moved_bytes * carriage.repack_s_per_byte
        move = Move(self._world.events, self._source, sink, closing_s, done)
        return Carried(move, carriage, held_tokens, self._scale)

    def _way(self, destination: str) -> tuple[Nic, Carriage]:
        world, transport = self._world, self._world.cluster.transport
        mine, place = worker_of(self._spec, transport), world.index.get(destination)
        if place is None:
            host = destination
            spec = dataclasses.replace(self._spec, id=destination, role=Role.DECODE, host=host, nic="")
            sink = Nic(f">{destination}", self._link(mine, mine, transport).beta_bytes_per_s)
        else:
            spec, sink = world.cluster.engines[place], world.receives[place]
        table = Candidates.build((mine, worker_of(spec, transport)), self._link)
        rows = [row for row, split in enumerate(table.split) if split]
        if not rows:
            raise ValueError(f"no KV can move from {mine.id} to {destination}: {dict(table.impossible)}")
        return sink, Carriage.of(table, rows[0])

    def _link(self, src: Worker, dst: Worker, transport: str) -> Link:
        units = min(src.layout.tp, dst.layout.tp)
        return Link.of(self._world.path, src.host, dst.host, transport, units=units)


class Carried:
    """One move; see `rooms.Move`."""

    __slots__ = ("_carriage", "_chunks", "_descriptors", "_held", "_move", "_scale", "_tokens")

    def __init__(self, move: Move, carriage: Carriage, held_tokens: int, scale: float) -> None:
        self._move, self._carriage, self._held, self._scale = move, carriage, held_tokens, scale
        self._tokens = self._chunks = 0
        self._descriptors = 0.0

    def add(self, tokens: int) -> None:
        carriage = self._carriage
        self._tokens += tokens
        self._chunks += 1
        spared = min(tokens, self._held)
        self._held -= spared
        fresh = tokens - spared
        descriptors = carriage.merged_descriptors + fresh * carriage.descriptors_per_token
        self._descriptors += descriptors
        self._move.offer(fresh * carriage.wire_bytes, descriptors * carriage.gamma_s)

    def close(self) -> None:
        carriage = self._carriage
        bounded = min(float(self._tokens), carriage.window_tokens) * carriage.window_wire_bytes
        self._move.offer(bounded + carriage.fixed_bytes, last=True)

    def cancel(self) -> None:
        self._move.drop()

    def told(self) -> Transfer:
        busy_s = self._move.busy_s / self._scale
        return Transfer(
            transport=self._carriage.link.transport,
            bytes=round(self._move.sent_bytes),
            descriptors=round(self._descriptors),
            chunks=self._chunks,
            calls=self._chunks,
            busy_s=round(busy_s, 6),
            span_s=round(busy_s, 6),
        )
